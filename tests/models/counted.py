"""Counts of published models by hand: each number stands with its arithmetic.

Parameters are also those that transformers 5.23.0 counts for the published configs, with the biases
of routers, which are buffers there.
"""

from __future__ import annotations

from typing import Any

from c2c.models import ModelSpec, from_hf_config
from tests.models import published, recent

CONFIGS = published.CONFIGS | recent.CONFIGS


def spec_of(name: str, **changes: Any) -> ModelSpec:
    return from_hf_config(CONFIGS[name] | changes, name)


# a layer of DeepSeek's latent attention, its norms and its index
V32 = 7168 * (1536 + 576) + 1536 * 128 * 192 + 512 * 128 * 256 + 16384 * 7168 + 1536 + 512
V32_INDEX = 1536 * 64 * 128 + 7168 * (128 + 64) + 2 * 128
GLM = 6144 * (2048 + 576) + 2048 * 64 * 256 + 512 * 64 * 448 + 16384 * 6144 + 2048 + 512
GLM_INDEX = 2048 * 32 * 128 + 6144 * (128 + 32) + 2 * 128
GLM_REST = (
    2 * 154880 * 6144 + 78 * (GLM + 2 * 6144) + 3 * 3 * 6144 * 12288 + 6144
    + 75 * (6144 * 256 + 256 + 257 * 3 * 6144 * 2048)
)  # fmt: skip
# q, k and v of 128 heads at 16 key heads, and a gate; two numbers a head; a convolution; a norm
DELTA_27B = 5120 * (10240 + 6144 + 2 * 48) + 10240 * 4 + 2 * 48 + 128 + 6144 * 5120
DELTA_35B = 2048 * (8192 + 4096 + 2 * 32) + 8192 * 4 + 2 * 32 + 128 + 4096 * 2048
# Mamba-2: z, x, B, C and a number a head in; convolution and bias; three numbers a head; a norm
NANO_STATE = 2688 * (2 * 4096 + 2048 + 64) + 6144 * 5 + 3 * 64 + 4096 + 4096 * 2688
SUPER_STATE = 4096 * (2 * 8192 + 2048 + 128) + 10240 * 5 + 3 * 128 + 8192 + 8192 * 4096
# Kimi: q, k, v and the gate of 96 x 128, two narrow products of the decay, convolutions, biases
KDA = 7168 * (4 * 12288 + 96 + 128) + 128 * 12288 + 12288 * 7168
KDA += 3 * 12288 * 4 + 12288 + 96 + 128
K3_LATENT = 7168 * (1536 + 576 + 96 * 128) + 1536 * 96 * 192 + 512 * 96 * 256 + 12288 * 7168
# DeepSeek V4: q by 1024 to 64 x 512, one key of 512, outputs by 8 groups of 1024; norms, sinks
V4 = 4096 * (1024 + 512) + 1024 * 32768 + 4096 * 8192 + 8192 * 4096 + 1024 + 512 + 64
V4_4 = 4096 * 2048 + 4 * 1024 + 512 + 1024 * 8192 + 4096 * (512 + 64) + 4 * 256 + 128
V4_128 = 4096 * 1024 + 128 * 512 + 512
V4_STREAMS = 43 * 2 * (24 * 4 * 4096 + 24 + 3) + 4 * 4 * 4096 + 4 + 1

# Matrices are inputs x outputs; norms stand behind them. Blocks that predict further tokens are
# left out, as by transformers.
PARAMETERS = {
    # embedding (the head too) + 42 (q, k and v + o + gate, up and down + four norms) + norm
    "gemma2_9b": (
        9_241_705_984,
        256000 * 3584
        + 42 * (3584 * (4096 + 2 * 2048) + 4096 * 3584 + 3 * 3584 * 14336 + 4 * 3584)
        + 3584,
    ),
    # the same, and norms of 256 for q and for k
    "gemma3_4b": (
        3_880_263_168,
        262208 * 2560
        + 34 * (2560 * (2048 + 2 * 1024) + 2048 * 2560 + 3 * 2560 * 10240 + 4 * 2560 + 2 * 256)
        + 2560,
    ),
    "phi3_mini": (
        3_821_079_552,
        2 * 32064 * 3072 + 32 * (4 * 3072 * 3072 + 3 * 3072 * 8192 + 2 * 3072) + 3072,
    ),
    # 10 heads of keys for 40 of queries
    "phi4": (
        14_659_507_200,
        2 * 100352 * 5120
        + 40 * (5120 * (5120 + 2 * 1280) + 5120 * 5120 + 3 * 5120 * 17920 + 2 * 5120)
        + 5120,
    ),
    # norms of all heads together: 4096 for q, 4096 for k
    "olmo2_7b": (
        7_298_617_344,
        2 * 100352 * 4096 + 32 * (4 * 4096**2 + 3 * 4096 * 11008 + 2 * 4096 + 2 * 4096) + 4096,
    ),
    "granite_8b": (
        8_170_848_256,
        49155 * 4096
        + 40 * (4096 * (4096 + 2 * 1024) + 4096 * 4096 + 3 * 4096 * 12800 + 2 * 4096)
        + 4096,
    ),
    # biases of q, k and v: 4096 + 2 x 256
    "glm4_9b": (
        9_400_279_040,
        2 * 151552 * 4096
        + 40 * (4096 * 4608 + 4608 + 4096 * 4096 + 3 * 4096 * 13696 + 4 * 4096)
        + 4096,
    ),
    # attention 46 times; the first layer dense; 45 with a router, its bias and 128 + 1 experts
    "glm45_air": (
        106_852_251_264,
        2 * 151552 * 4096
        + 46 * (4096 * (12288 + 2 * 1024) + 12288 + 2048 + 12288 * 4096 + 2 * 4096)
        + 3 * 4096 * 10944
        + 45 * (4096 * 128 + 128 + 129 * 3 * 4096 * 1408)
        + 4096,
    ),
    # q straight from the activations: 16 x (128 + 64); latent 512 + 64; 2 of 64 + 2 experts' width
    "deepseek_v2_lite": (
        15_706_484_224,
        2 * 102400 * 2048
        + 27 * (2048 * 3072 + 2048 * 576 + 512 + 512 * 4096 + 2048 * 2048 + 2 * 2048)
        + 3 * 2048 * 10944
        + 26 * (2048 * 64 + 66 * 3 * 2048 * 1408)
        + 2048,
    ),
    # q by 1536: 128 x (128 + 64); keys and values 128 x (128 + 128); 3 dense layers; 257 experts
    "deepseek_v3": (
        671_026_419_200,
        2 * 129280 * 7168
        + 61 * (7168 * 1536 + 1536 + 1536 * 24576 + 7168 * 576 + 512 + 512 * 32768)
        + 61 * (16384 * 7168 + 2 * 7168)
        + 3 * 3 * 7168 * 18432
        + 58 * (7168 * 256 + 256 + 257 * 3 * 7168 * 2048)
        + 7168,
    ),
    "kimi_k2": (
        1_026_408_232_448,
        2 * 163840 * 7168
        + 61 * (7168 * 1536 + 1536 + 1536 * 12288 + 7168 * 576 + 512 + 512 * 16384)
        + 61 * (8192 * 7168 + 2 * 7168)
        + 3 * 7168 * 18432
        + 60 * (7168 * 384 + 384 + 385 * 3 * 7168 * 2048)
        + 7168,
    ),
    # 12 layers of attention with a gate as wide as q; 36 of linear attention: q, k of 2048, v and a
    # gate of 4096, two numbers a head, a convolution over 4 positions of 8192 channels
    "qwen3_next_80b": (
        79_674_391_296,
        2 * 151936 * 2048
        + 12 * (2048 * (2 * 4096 + 2 * 512) + 4096 * 2048 + 2 * 256)
        + 36 * (2048 * (8192 + 4096 + 64) + 8192 * 4 + 2 * 32 + 128 + 4096 * 2048)
        + 48 * (2048 * 512 + 513 * 3 * 2048 * 512 + 2048 + 2 * 2048)
        + 2048,
    ),
    "qwen3_vl_8b": (
        8_190_735_360,
        2 * 151936 * 4096 + 4096
        + 36 * (4096 * 6144 + 4096 * 4096 + 3 * 4096 * 12288 + 2 * 4096 + 2 * 128),
    ),
    "qwen3_5_27b": (
        26_895_998_464,
        2 * 248320 * 5120 + 5120 + 64 * (3 * 5120 * 17408 + 2 * 5120) + 48 * DELTA_27B
        + 16 * (5120 * (2 * 6144 + 2 * 1024) + 6144 * 5120 + 2 * 256),
    ),
    "qwen3_5_35b_a3b": (
        34_660_610_688,
        2 * 248320 * 2048 + 2048 + 30 * DELTA_35B
        + 10 * (2048 * (2 * 4096 + 2 * 512) + 4096 * 2048 + 2 * 256)
        + 40 * (2048 * 256 + 257 * 3 * 2048 * 512 + 2048 + 2 * 2048),
    ),
    # norms of all heads of q together, and of k; no shared expert
    "minimax_m2": (
        228_689_748_992 + 62 * 256,
        2 * 200064 * 3072 + 3072
        + 62 * (3072 * (6144 + 2048) + 6144 * 3072 + 6144 + 1024 + 2 * 3072)
        + 62 * (3072 * 256 + 256 + 256 * 3 * 3072 * 1536),
    ),
    "minimax_m3": (
        426_174_565_632 + 57 * 128,
        2 * 200064 * 6144 + 6144
        + 60 * (6144 * (8192 + 1024) + 8192 * 6144 + 2 * 128 + 2 * 6144)
        + 57 * (6144 * (512 + 128) + 2 * 128) + 3 * 3 * 6144 * 12288
        + 57 * (6144 * 128 + 128 + 129 * 3 * 6144 * 3072),
    ),
    "deepseek_v32": (
        671_877_929_216 + 58 * 256,
        2 * 129280 * 7168 + 7168 + 61 * (V32 + V32_INDEX + 2 * 7168) + 3 * 3 * 7168 * 18432
        + 58 * (7168 * 256 + 256 + 257 * 3 * 7168 * 2048),
    ),
    "glm5": (743_911_199_232 + 75 * 256, GLM_REST + 78 * GLM_INDEX),
    "glm5_2": (743_377_000_704 + 75 * 256, GLM_REST + 21 * GLM_INDEX),
    # experts of 40 layers have biases; those of three are numbers in a table
    "deepseek_v4_flash": (
        284_332_230_231 + 40 * 256,
        2 * 129280 * 4096 + 4096 + 43 * (V4 + 2 * 4096) + 21 * V4_4 + 20 * V4_128 + V4_STREAMS
        + 43 * (4096 * 256 + 257 * 3 * 4096 * 2048) + 40 * 256,
    ),
    # q, k and v of 256 in 25 layers; q and k of 512 without v in 5; a dense block beside experts;
    # seven norms; factors of a router's inputs and of its results
    "gemma4_26b_a4b": (
        25_233_141_760,
        262144 * 2816 + 2816
        + 25 * (2816 * (4096 + 2 * 2048) + 4096 * 2816 + 2 * 256)
        + 5 * (2816 * (8192 + 1024) + 8192 * 2816 + 2 * 512)
        + 30 * (3 * 2816 * 2112 + 2816 * 128 + 128 * 3 * 2816 * 704 + 7 * 2816 + 2816 + 128),
    ),
    "llama4_maverick": (
        400_711_848_960,
        2 * 202048 * 5120 + 5120 + 48 * (5120 * (5120 + 2048) + 5120 * 5120 + 2 * 5120)
        + 24 * 3 * 5120 * 16384 + 24 * (5120 * 128 + 129 * 3 * 5120 * 8192),
    ),
    # keys of 192, values of 128; 4 heads of them in 9 layers, 8 and sinks in 39
    "mimo_v2_flash": (
        308_778_768_832 + 47 * 256,
        2 * 152576 * 4096 + 4096 + 48 * (4096 * 12288 + 8192 * 4096 + 2 * 4096)
        + 9 * 4096 * 4 * 320 + 39 * (4096 * 8 * 320 + 64) + 3 * 4096 * 16384
        + 47 * (4096 * 256 + 256 + 256 * 3 * 4096 * 2048),
    ),
    # a gate of one number a head
    "step3_7_flash": (
        195_844_508_736,
        2 * 128896 * 4096 + 4096 + 3 * 3 * 4096 * 11264
        + 45 * (4096 * (8192 + 2048 + 64) + 8192 * 4096 + 2 * 128 + 2 * 4096)
        + 42 * (4096 * 288 + 288 + 289 * 3 * 4096 * 1280),
    ),
    # 23 states, 6 of attention, 23 of experts with two matrices each; a norm a layer
    "nemotron3_nano": (
        31_577_937_344 + 23 * 128,
        2 * 131072 * 2688 + 2688 + 52 * 2688 + 23 * NANO_STATE
        + 6 * (2688 * (4096 + 512) + 4096 * 2688)
        + 23 * (2688 * 128 + 128 + 128 * 2 * 2688 * 1856 + 2 * 2688 * 3712),
    ),
    "nemotron3_super": (
        120_668_687_360 + 40 * 512,
        2 * 131072 * 4096 + 4096 + 88 * 4096 + 40 * SUPER_STATE
        + 8 * (4096 * (4096 + 512) + 4096 * 4096)
        + 40 * (4096 * 512 + 512 + 512 * 2 * 1024 * 2688 + 2 * 4096 * 1024 + 2 * 4096 * 5376),
    ),
    # without the vectors of its residual attention, which are not public
    "kimi_k3": (
        2_779_481_795_168,
        2 * 163840 * 7168 + 7168 + 93 * 2 * 7168 + 69 * KDA + 24 * (K3_LATENT + 1536 + 512)
        + 3 * 7168 * 33792
        + 92 * (7168 * 896 + 896 + 896 * 3 * 3584 * 3072 + 2 * 7168 * 3584 + 3584
                + 3 * 7168 * 6144),
    ),
}  # fmt: skip

# bytes that the first token adds, one beyond every window, and the state
GROWTH = {
    "gemma2_9b": (42 * 2 * 8 * 256 * 2, 21 * 2 * 8 * 256 * 2, 0),  # 344,064; every second layer
    "gemma3_4b": (34 * 2 * 4 * 256 * 2, 5 * 2 * 4 * 256 * 2, 0),  # 139,264; layers 5, 11 to 29
    "phi3_mini": (393_216, 393_216, 0),  # 32 x 2 x 32 x 96 x 2
    "phi4": (204_800, 204_800, 0),  # 40 x 2 x 10 x 128 x 2
    "olmo2_7b": (524_288, 524_288, 0),  # 32 x 2 x 32 x 128 x 2
    "granite_8b": (163_840, 163_840, 0),  # 40 x 2 x 8 x 128 x 2
    "glm4_9b": (40_960, 40_960, 0),  # 40 x 2 x 2 x 128 x 2
    "glm45_air": (188_416, 188_416, 0),  # 46 x 2 x 8 x 128 x 2
    "deepseek_v2_lite": ((512 + 64) * 27 * 2, 31_104, 0),
    "deepseek_v3": ((512 + 64) * 61 * 2, 70_272, 0),
    "kimi_k2": (70_272, 70_272, 0),
    "qwen3_next_80b": (12 * 2 * 2 * 256 * 2, 24_576, 36 * (32 * 128 * 128 * 4 + 3 * 8192 * 2)),
    "qwen3_vl_8b": (36 * 2 * 8 * 128 * 2, 147_456, 0),
    "qwen3_5_27b": (65_536, 65_536, 48 * (48 * 128 * 128 * 4 + 3 * 10240 * 2)),
    "qwen3_5_35b_a3b": (20_480, 20_480, 30 * (32 * 128 * 128 * 4 + 3 * 8192 * 2)),
    "minimax_m2": (62 * 2 * 8 * 128 * 2, 253_952, 0),
    # keys and values, and a key of the index in 57 layers
    "minimax_m3": (60 * 2 * 4 * 128 * 2 + 57 * 128 * 2, 137_472, 0),
    "deepseek_v32": (61 * (576 + 128) * 2, 85_888, 0),
    "glm5": (78 * 576 * 2 + 78 * 128 * 2, 89_856 + 19_968, 0),
    "glm5_2": (78 * 576 * 2 + 21 * 128 * 2, 95_232, 0),
    # 43 windows; an entry of 512 and an index key of 128 for 4 tokens, or one of 512 for 128
    "deepseek_v4_flash": (
        43 * 512 * 2 + 21 * (512 + 128) * 2 // 4 + 20 * 512 * 2 // 128, 6_720 + 160, 0,
    ),
    "gemma4_26b_a4b": (204_800 + 20_480, 20_480, 0),
    "llama4_maverick": (48 * 2 * 8 * 128 * 2, 12 * 2 * 8 * 128 * 2, 0),
    "mimo_v2_flash": ((9 * 4 + 39 * 8) * 320 * 2, 9 * 4 * 320 * 2, 0),
    "step3_7_flash": (45 * 2 * 8 * 128 * 2, 12 * 2 * 8 * 128 * 2, 0),
    "nemotron3_nano": (6 * 2 * 2 * 128 * 2, 6_144, 23 * (64 * 64 * 128 * 4 + 3 * 6144 * 2)),
    "nemotron3_super": (8_192, 8_192, 40 * (128 * 64 * 128 * 4 + 3 * 10240 * 2)),
    "kimi_k3": (24 * 576 * 2, 27_648, 69 * (96 * 128 * 128 * 4 + 3 * 3 * 12288 * 2)),
}  # fmt: skip

# parameters that one token is multiplied with, in units of 1e9; without the embedding
ACTIVE = {
    "qwen3_5_35b_a3b": (2.9, 3.5), "minimax_m2": (10.0, 10.5), "glm5": (39.5, 41.0),
    "gemma4_26b_a4b": (3.7, 4.0), "nemotron3_nano": (3.1, 3.3), "nemotron3_super": (12.0, 13.0),
    "deepseek_v4_flash": (12.0, 14.0), "mimo_v2_flash": (14.5, 15.5), "step3_7_flash": (10.0, 11.5),
    "llama4_maverick": (16.0, 18.0),
}  # fmt: skip
