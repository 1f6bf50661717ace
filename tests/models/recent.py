"""Configs of models published in 2025 and 2026, the fields that matter, written by hand."""

from __future__ import annotations

from typing import Any

from tests.models.published import LATENT, sizes

_BLOCKS = {"M": "mamba", "*": "attention", "E": "moe", "-": "mlp"}
_DELTA = {
    "head_dim": 256, "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128,
    "linear_num_key_heads": 16, "linear_value_head_dim": 128, "full_attention_interval": 4,
}  # fmt: skip
_INDEX = {"index_head_dim": 128, "index_topk": 2048}
_MAMBA = {
    "head_dim": 128, "mamba_head_dim": 64, "ssm_state_size": 128, "n_groups": 8, "conv_kernel": 4,
    "mamba_ssm_cache_dtype": "float32", "mlp_hidden_act": "relu2", "n_shared_experts": 1,
}  # fmt: skip
_NANO = "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME"
_SUPER = "MEMEMEM*EMEMEMEM*EMEMEMEM*EMEMEMEMEM*EMEMEMEMEM*EMEMEMEMEM*EMEMEMEMEM*EMEMEMEM*EMEMEMEME"


def inside(family: str, text: dict[str, Any], **more: Any) -> dict[str, Any]:
    """Return the config of a model that sees, with its language model under `text_config`."""
    return {"model_type": family, "text_config": text, **more}


CONFIGS: dict[str, dict[str, Any]] = {
    "qwen3_vl_8b": inside("qwen3_vl", sizes(
        "qwen3_vl_text", 36, 4096, 12288, (32, 8), 151936, 262144, head_dim=128,
    )),
    "qwen3_5_27b": inside("qwen3_5", sizes(
        "qwen3_5_text", 64, 5120, 17408, (24, 4), 248320, 262144, **_DELTA,
        linear_num_value_heads=48,
    ), tie_word_embeddings=False),
    "qwen3_5_35b_a3b": inside("qwen3_5_moe", sizes(
        "qwen3_5_moe_text", 40, 2048, None, (16, 2), 248320, 262144, **_DELTA,
        linear_num_value_heads=32, moe_intermediate_size=512, num_experts=256,
        num_experts_per_tok=8, shared_expert_intermediate_size=512,
    )),
    "minimax_m2": sizes(
        "minimax_m2", 62, 3072, 1536, (48, 8), 200064, 196608, head_dim=128, num_local_experts=256,
        num_experts_per_tok=8, use_qk_norm=True, qk_norm_type="per_layer", use_routing_bias=True,
        quantization_config={
            "quant_method": "fp8", "weight_block_size": [128, 128],
            "modules_to_not_convert": ["gate", "e_score_correction_bias", "lm_head"],
        },
    ),
    "minimax_m3": sizes(
        "minimax_m3", 60, 6144, 3072, (64, 4), 200064, 1048576, head_dim=128,
        dense_intermediate_size=12288, shared_intermediate_size=3072, n_shared_experts=1,
        num_local_experts=128, num_experts_per_tok=4, moe_layer_freq=[0] * 3 + [1] * 57,
        use_gemma_norm=True, qk_norm_type="per_head",
        sparse_attention_config={
            "sparse_attention_freq": [0] * 3 + [1] * 57, "sparse_index_dim": 128,
            "sparse_num_index_heads": 4, "sparse_topk_blocks": 16, "sparse_block_size": 128,
        },
    ),
    "deepseek_v32": sizes(
        "deepseek_v32", 61, 7168, 18432, (128, 128), 129280, 163840, **LATENT, q_lora_rank=1536,
        moe_intermediate_size=2048, n_routed_experts=256, n_shared_experts=1,
        num_experts_per_tok=8, first_k_dense_replace=3, n_group=8, topk_group=4,
        index_n_heads=64, **_INDEX,
    ),
    "glm5": sizes(
        "glm_moe_dsa", 78, 6144, 12288, (64, 64), 154880, 202752, kv_lora_rank=512,
        qk_nope_head_dim=192, qk_rope_head_dim=64, v_head_dim=256, q_lora_rank=2048,
        moe_intermediate_size=2048, n_routed_experts=256, n_shared_experts=1,
        num_experts_per_tok=8, first_k_dense_replace=3, index_n_heads=32, **_INDEX,
    ),
    # index keys of every fourth layer only, which three others use
    "glm5_2": sizes(
        "glm_moe_dsa", 78, 6144, 12288, (64, 64), 154880, 1048576, kv_lora_rank=512,
        qk_nope_head_dim=192, qk_rope_head_dim=64, v_head_dim=256, q_lora_rank=2048,
        moe_intermediate_size=2048, n_routed_experts=256, n_shared_experts=1,
        num_experts_per_tok=8, mlp_layer_types=["dense"] * 3 + ["sparse"] * 75, index_n_heads=32,
        indexer_types=["full"] * 3 + (["shared"] * 3 + ["full"]) * 18 + ["shared"] * 3, **_INDEX,
    ),
    "deepseek_v4_flash": sizes(
        "deepseek_v4", 43, 4096, None, (64, 1), 129280, 1048576, head_dim=512, q_lora_rank=1024,
        o_lora_rank=1024, o_groups=8, hc_mult=4, num_hash_layers=3, sliding_window=128,
        compress_ratios=[0, 0] + [4, 128] * 20 + [4, 0], index_n_heads=64, index_head_dim=128,
        index_topk=512, moe_intermediate_size=2048, n_routed_experts=256, n_shared_experts=1,
        num_experts_per_tok=6, expert_dtype="fp4",
        quantization_config={
            "quant_method": "fp8", "weight_block_size": [128, 128], "scale_fmt": "ue8m0",
        },
    ),
    "gemma4_26b_a4b": inside("gemma4", sizes(
        "gemma4_text", 30, 2816, 2112, (16, 8), 262144, 262144, head_dim=256, global_head_dim=512,
        num_global_key_value_heads=2, attention_k_eq_v=True, enable_moe_block=True,
        moe_intermediate_size=704, num_experts=128, top_k_experts=8, sliding_window=1024,
        layer_types=(["sliding_attention"] * 5 + ["full_attention"]) * 5,
    )),
    "llama4_maverick": inside("llama4", sizes(
        "llama4_text", 48, 5120, 8192, (40, 8), 202048, 1048576, head_dim=128,
        intermediate_size_mlp=16384, interleave_moe_layer_step=2, num_local_experts=128,
        num_experts_per_tok=1, attention_chunk_size=8192,
    )),
    "mimo_v2_flash": sizes(
        "mimo_v2_flash", 48, 4096, 16384, (64, 4), 152576, 262144, head_dim=192, v_head_dim=128,
        swa_num_key_value_heads=8, sliding_window=128, add_swa_attention_sink_bias=True,
        hybrid_layer_pattern=[0] + [1] * 4 + ([0] + [1] * 5) * 7 + [0], n_routed_experts=256,
        moe_layer_freq=[0] + [1] * 47, moe_intermediate_size=2048, n_shared_experts=None,
        num_experts_per_tok=8, routed_scaling_factor=None,
    ),
    "step3_7_flash": sizes(
        "step3p7", 45, 4096, 11264, (64, 8), 128896, 65536, head_dim=128, sliding_window=512,
        first_k_dense_replace=3, num_experts=288, num_experts_per_tok=8, moe_intermediate_size=1280,
        share_expert_dim=1280,
        layer_types=[("sliding" if i % 4 else "full") + "_attention" for i in range(45)],
    ),
    "nemotron3_nano": sizes(
        "nemotron_h", 52, 2688, 1856, (32, 2), 131072, 262144, **_MAMBA, mamba_num_heads=64,
        hybrid_override_pattern=_NANO, n_routed_experts=128, num_experts_per_tok=6,
        moe_intermediate_size=1856, moe_shared_expert_intermediate_size=3712,
    ),
    # experts between two projections to 1024 values
    "nemotron3_super": sizes(
        "nemotron_h", 88, 4096, 2688, (32, 2), 131072, 262144, **_MAMBA, mamba_num_heads=128,
        layers_block_type=[_BLOCKS[c] for c in _SUPER], n_routed_experts=512,
        num_experts_per_tok=22, moe_intermediate_size=2688, moe_latent_size=1024,
        moe_shared_expert_intermediate_size=5376,
    ),
    "kimi_k3": inside("kimi_k3", sizes(
        "kimi_linear", 93, 7168, 33792, (96, 96), 163840, 1048576, **LATENT, q_lora_rank=1536,
        moe_intermediate_size=3072, num_experts=896, num_experts_per_token=16,
        num_shared_experts=2, first_k_dense_replace=1, moe_renormalize=True, num_expert_group=1,
        routed_expert_hidden_size=3584, latent_moe_use_norm=True, mla_use_output_gate=True,
        linear_attn_config={
            "kda_layers": [i for i in range(1, 93) if i % 4], "num_heads": 96, "head_dim": 128,
            "short_conv_kernel_size": 4, "use_full_rank_gate": True,
        },
    )),
}  # fmt: skip
