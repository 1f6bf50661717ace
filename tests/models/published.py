"""Configs of published models, the fields that matter, written by hand."""

from __future__ import annotations

from typing import Any

_BF16 = {"torch_dtype": "bfloat16", "rms_norm_eps": 1e-6, "hidden_act": "silu"}


def sizes(
    family: str, layers: int, hidden: int, width: int | None, heads: tuple[int, int], vocab: int,
    context: int, **more: Any,
) -> dict[str, Any]:  # fmt: skip
    return {
        **_BF16, "model_type": family, "num_hidden_layers": layers, "hidden_size": hidden,
        "intermediate_size": width, "num_attention_heads": heads[0],
        "num_key_value_heads": heads[1], "vocab_size": vocab, "max_position_embeddings": context,
        **more,
    }  # fmt: skip


LATENT = {
    "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
}  # fmt: skip
CONFIGS: dict[str, dict[str, Any]] = {
    "gemma2_9b": sizes("gemma2", 42, 3584, 14336, (16, 8), 256000, 8192, head_dim=256,
                        sliding_window=4096),
    # as published, most of it is left to the defaults
    "gemma3_4b": {
        "model_type": "gemma3", "torch_dtype": "bfloat16", "text_config": {
            "model_type": "gemma3_text", "hidden_size": 2560, "intermediate_size": 10240,
            "num_hidden_layers": 34, "sliding_window": 1024,
            "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        },
    },
    "phi3_mini": sizes("phi3", 32, 3072, 8192, (32, 32), 32064, 4096),
    "phi4": sizes("phi3", 40, 5120, 17920, (40, 10), 100352, 16384),
    "olmo2_7b": sizes("olmo2", 32, 4096, 11008, (32, 32), 100352, 4096),
    "granite_8b": sizes(
        "granite", 40, 4096, 12800, (32, 8), 49155, 131072, tie_word_embeddings=True,
        embedding_multiplier=12.0, residual_multiplier=0.22, attention_multiplier=0.0078125,
        logits_scaling=16.0,
    ),
    "glm4_9b": sizes("glm4", 40, 4096, 13696, (32, 2), 151552, 32768, head_dim=128,
                      attention_bias=True),
    "glm45_air": sizes(
        "glm4_moe", 46, 4096, 10944, (96, 8), 151552, 131072, head_dim=128, attention_bias=True,
        moe_intermediate_size=1408, n_routed_experts=128, n_shared_experts=1,
        num_experts_per_tok=8, first_k_dense_replace=1, use_qk_norm=False,
    ),
    "deepseek_v2_lite": sizes(
        "deepseek_v2", 27, 2048, 10944, (16, 16), 102400, 163840, **LATENT, q_lora_rank=None,
        moe_intermediate_size=1408, n_routed_experts=64, n_shared_experts=2, num_experts_per_tok=6,
        first_k_dense_replace=1,
    ),
    "deepseek_v3": sizes(
        "deepseek_v3", 61, 7168, 18432, (128, 128), 129280, 163840, **LATENT, q_lora_rank=1536,
        moe_intermediate_size=2048, n_routed_experts=256, n_shared_experts=1,
        num_experts_per_tok=8, first_k_dense_replace=3, n_group=8, topk_group=4,
        routed_scaling_factor=2.5, norm_topk_prob=True, num_nextn_predict_layers=1,
        quantization_config={"quant_method": "fp8", "weight_block_size": [128, 128]},
    ),
    "kimi_k2": sizes(
        "kimi_k2", 61, 7168, 18432, (64, 64), 163840, 131072, **LATENT, q_lora_rank=1536,
        moe_intermediate_size=2048, n_routed_experts=384, n_shared_experts=1,
        num_experts_per_tok=8, first_k_dense_replace=1, n_group=1, topk_group=1,
    ),
    "qwen3_next_80b": sizes(
        "qwen3_next", 48, 2048, 5120, (16, 2), 151936, 262144, head_dim=256,
        moe_intermediate_size=512, shared_expert_intermediate_size=512, num_experts=512,
        num_experts_per_tok=10, full_attention_interval=4, linear_conv_kernel_dim=4,
        linear_key_head_dim=128, linear_num_key_heads=16, linear_num_value_heads=32,
        linear_value_head_dim=128,
    ),
}  # fmt: skip
