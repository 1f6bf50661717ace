"""Small random checkpoints of every family, written as transformers writes them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from tests.transformer.plain_model import NORMS

_BASE: dict[str, Any] = {
    "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 48, "vocab_size": 96, "max_position_embeddings": 512, "rms_norm_eps": 1e-5,
    "hidden_act": "silu", "tie_word_embeddings": False,
}  # fmt: skip
_LLAMA3 = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}  # fmt: skip
_MOE = {"num_hidden_layers": 2, "num_experts_per_tok": 2}

# v5 keeps the rotary settings in rope_parameters, v4 in rope_theta and rope_scaling
CONFIGS: dict[str, dict[str, Any]] = {
    "llama": {"rope_parameters": {"rope_theta": 50000.0, **_LLAMA3}, "dtype": "float32"},
    "llama_biased": {
        "model_type": "llama",
        "attention_bias": True,
        "mlp_bias": True,
        "rope_theta": 10000.0,
        "rope_scaling": {"type": "linear", "rope_type": "linear", "factor": 2.0},
        "torch_dtype": "float32",
    },
    "mistral": {"rope_theta": 10000.0, "sliding_window": 6, "head_dim": None},
    "qwen2": {
        "rope_theta": 1e6, "use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1,
    },
    "qwen3": {
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
        "head_dim": 16,
        "tie_word_embeddings": True,
    },
    "mixtral": {**_MOE, "rope_theta": 1e6, "num_local_experts": 4},
    "qwen3_moe": {
        **_MOE, "rope_theta": 1e6, "head_dim": 16, "num_experts": 6, "moe_intermediate_size": 16,
        "norm_topk_prob": False, "use_sliding_window": True, "sliding_window": 7,
        "num_experts_per_tok": 3,
    },
}  # fmt: skip


_LONG = {"short_factor": [1.0 + 0.1 * i for i in range(4)], "long_factor": [1.5, 2.0, 4.0, 8.0]}

# Variants of families, each with several things that few checkpoints have.
VARIANTS: dict[str, dict[str, Any]] = {
    "mixed": {
        **CONFIGS["qwen3_moe"], "model_type": "qwen3_moe", "num_hidden_layers": 4,
        "mlp_only_layers": [3], "decoder_sparse_step": 2, "norm_topk_prob": True,
        "attention_bias": True, "hidden_act": "gelu",
    },
    "only_dense": {
        **CONFIGS["qwen3_moe"],
        "model_type": "qwen3_moe",
        "mlp_only_layers": [0, 1],
        "hidden_act": "quick_gelu",
    },
    "yarn": {
        "model_type": "qwen3",
        "head_dim": 32,
        "hidden_act": "gelu_pytorch_tanh",
        "use_sliding_window": True,
        "sliding_window": 9,
        "max_window_layers": 1,
        "rope_theta": 100.0,
        "rope_scaling": {
            "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64,
            "beta_fast": 4.0, "attention_factor": 1.2,
        },
    },
    "longrope": {
        "model_type": "mistral",
        "sliding_window": None,
        "hidden_act": "relu2",
        "rope_parameters": {
            "rope_type": "longrope", "rope_theta": 1e4, "attention_factor": 1.1,
            "original_max_position_embeddings": 18, **_LONG,
        },
    },
    "dynamic": {
        "model_type": "llama", "max_position_embeddings": 18, "hidden_act": "relu",
        "rope_theta": 1e4, "rope_scaling": {"rope_type": "dynamic", "factor": 4.0},
    },
}  # fmt: skip


_GEMMA = {
    "head_dim": 16, "query_pre_attn_scalar": 24, "hidden_activation": "gelu_pytorch_tanh",
    "tie_word_embeddings": True, "num_hidden_layers": 4,
}  # fmt: skip
# Families whose layers differ from Llama's in more than a bias.
TODAY: dict[str, dict[str, Any]] = {
    "gemma2": {
        **_GEMMA, "sliding_window": 6, "attn_logit_softcapping": 3.0,
        "final_logit_softcapping": 4.0, "rope_theta": 10000.0,
    },
    "gemma3_text": {
        **_GEMMA, "sliding_window": 5, "sliding_window_pattern": 3, "rope_local_base_freq": 100.0,
        "rope_theta": 1e6, "rope_scaling": {"rope_type": "linear", "factor": 8.0},
    },
    "phi3": {
        "head_dim": 16, "sliding_window": 7, "partial_rotary_factor": 0.75, "rope_theta": 10000.0,
    },
    "olmo2": {"rope_theta": 10000.0, "attention_bias": True},
    "granite": {
        "rope_theta": 10000.0, "attention_bias": True, "mlp_bias": True,
        "embedding_multiplier": 3.0, "residual_multiplier": 0.4, "attention_multiplier": 0.25,
        "logits_scaling": 0.5, "tie_word_embeddings": True,
    },
    "glm4": {
        "head_dim": 16, "attention_bias": True, "partial_rotary_factor": 0.5, "rope_theta": 10000.0,
    },
    "glm4_moe": {
        "head_dim": 16, "attention_bias": True, "use_qk_norm": True, "partial_rotary_factor": 0.5,
        "rope_theta": 10000.0, "n_routed_experts": 8, "num_experts_per_tok": 3,
        "moe_intermediate_size": 16, "n_shared_experts": 2, "first_k_dense_replace": 1,
        "n_group": 4, "topk_group": 2, "routed_scaling_factor": 1.7, "norm_topk_prob": True,
    },
}  # fmt: skip
_LATENT = {
    "num_key_value_heads": 4, "kv_lora_rank": 24, "qk_nope_head_dim": 12, "qk_rope_head_dim": 8,
    "v_head_dim": 10, "q_lora_rank": 20, "rope_theta": 10000.0, "rms_norm_eps": 1e-6,
    "n_routed_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 16,
    "n_shared_experts": 2, "first_k_dense_replace": 1, "n_group": 4, "topk_group": 2,
    "routed_scaling_factor": 1.7, "norm_topk_prob": True,
}  # fmt: skip
TODAY |= {
    "deepseek_v3": {
        **_LATENT,
        "rope_scaling": {
            "rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 16,
            "beta_fast": 4, "beta_slow": 1, "mscale": 1.0, "mscale_all_dim": 1.0,
        },
    },
    "kimi_k2": {
        **_LATENT, "q_lora_rank": None, "n_group": 1, "topk_group": 1, "rope_interleave": False,
    },
    "minimax_m2": {
        "head_dim": 16, "rotary_dim": 8, "rope_theta": 10000.0, "use_qk_norm": True,
        "num_local_experts": 8, "num_experts_per_tok": 3, "intermediate_size": 16,
    },
    "llama4_text": {
        "head_dim": 8, "num_hidden_layers": 4, "rope_theta": 10000.0, "num_local_experts": 6,
        "num_experts_per_tok": 1, "interleave_moe_layer_step": 2, "intermediate_size": 16,
        "intermediate_size_mlp": 24, "attention_chunk_size": 64, "no_rope_layers": [1, 0, 1, 1],
    },
}  # fmt: skip
TODAY |= {
    f"{name}_wide": {"model_type": name, **TODAY[name], "sliding_window": 64}
    for name in ("gemma2", "gemma3_text", "phi3")
}


def config_of(name: str, **changes: Any) -> dict[str, Any]:
    return {"model_type": name, **_BASE, **(CONFIGS | VARIANTS | TODAY)[name], **changes}


def shapes_of(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """The tensors that transformers saves for a config."""
    h, vocab, family = config["hidden_size"], config["vocab_size"], config["model_type"]
    dim = config.get("head_dim") or h // config["num_attention_heads"]
    q, kv = config["num_attention_heads"] * dim, config["num_key_value_heads"] * dim
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (vocab, h),
        "model.norm.weight": (h,),
    }
    if not config["tie_word_embeddings"]:
        shapes["lm_head.weight"] = (vocab, h)
    biased = config.get("attention_bias", False)
    for layer in range(config["num_hidden_layers"]):
        mine: dict[str, tuple[int, ...]] = {
            f"{name}.weight": (h,) for name in NORMS.get(family, NORMS["llama"]) if name
        }
        if "kv_lora_rank" in config:
            mine |= _latent(config, h)
        plain = {} if "kv_lora_rank" in config else {
            "q": (q, h), "k": (kv, h), "v": (kv, h), "o": (h, q),
        }  # fmt: skip
        for name, (rows, columns) in plain.items():
            mine[f"self_attn.{name}_proj.weight"] = (rows, columns)
            if (biased and (name != "o" or not family.startswith("glm"))) or (
                family == "qwen2" and name != "o"
            ):
                mine[f"self_attn.{name}_proj.bias"] = (rows,)
        if family.startswith(("qwen3", "gemma3")) or config.get("use_qk_norm"):
            mine |= {"self_attn.q_norm.weight": (dim,), "self_attn.k_norm.weight": (dim,)}
        if family in ("olmo2", "minimax_m2"):
            mine |= {"self_attn.q_norm.weight": (q,), "self_attn.k_norm.weight": (kv,)}
        if family == "phi3":
            for name in "qkv":
                mine.pop(f"self_attn.{name}_proj.weight")
            mine["self_attn.qkv_proj.weight"] = (q + 2 * kv, h)
        mine |= _feed_forward(config, h, family, layer)
        shapes |= {f"model.layers.{layer}.{name}": shape for name, shape in mine.items()}
    return shapes


def _latent(config: dict[str, Any], h: int) -> dict[str, tuple[int, ...]]:
    heads, rank = config["num_attention_heads"], config["kv_lora_rank"]
    nope, rope = config["qk_nope_head_dim"], config["qk_rope_head_dim"]
    q, value = heads * (nope + rope), config["v_head_dim"]
    shapes = {
        "kv_a_proj_with_mqa": (rank + rope, h), "kv_b_proj": (heads * (nope + value), rank),
        "kv_a_layernorm": (rank,), "o_proj": (h, heads * value),
    }  # fmt: skip
    if inner := config["q_lora_rank"]:
        shapes |= {"q_a_proj": (inner, h), "q_a_layernorm": (inner,), "q_b_proj": (q, inner)}
    else:
        shapes["q_proj"] = (q, h)
    return {f"self_attn.{name}.weight": shape for name, shape in shapes.items()}


def _llama4(config: dict[str, Any], h: int, layer: int) -> dict[str, tuple[int, ...]]:
    folder, count, width = "feed_forward", config["num_local_experts"], config["intermediate_size"]
    is_dense = (layer + 1) % config["interleave_moe_layer_step"]
    at = folder if is_dense else f"{folder}.shared_expert"
    rows = config["intermediate_size_mlp"] if is_dense else width
    shapes: dict[str, tuple[int, ...]] = {
        f"{at}.gate_proj.weight": (rows, h), f"{at}.up_proj.weight": (rows, h),
        f"{at}.down_proj.weight": (h, rows),
    }  # fmt: skip
    return shapes if is_dense else shapes | {
        f"{folder}.router.weight": (count, h),
        f"{folder}.experts.gate_up_proj": (count, h, 2 * width),
        f"{folder}.experts.down_proj": (count, width, h),
    }  # fmt: skip


def _feed_forward(
    config: dict[str, Any], h: int, family: str, layer: int
) -> dict[str, tuple[int, ...]]:
    if family == "llama4_text":
        return _llama4(config, h, layer)
    names, folder, width = ("gate_proj", "up_proj", "down_proj"), "mlp", config["intermediate_size"]
    if family in ("phi3", "glm4"):
        return {"mlp.gate_up_proj.weight": (2 * width, h), "mlp.down_proj.weight": (h, width)}
    if layer >= config.get("first_k_dense_replace", layer + 1):
        return _with_shared_experts(config, h)
    dense = layer in config.get("mlp_only_layers", ()) or (
        (layer + 1) % config.get("decoder_sparse_step", 1)
    )
    if family not in ("mixtral", "minimax_m2", "qwen3_moe") or dense:
        shapes = {
            f"mlp.{name}.weight": (h, width) if name == "down_proj" else (width, h)
            for name in names
        }
        if config.get("mlp_bias"):
            shapes |= {
                f"mlp.{name}.bias": ((h if name == "down_proj" else width),) for name in names
            }
        return shapes
    experts = config.get("num_local_experts") or config["num_experts"]
    more: dict[str, tuple[int, ...]] = {}
    if family in ("mixtral", "minimax_m2"):
        names, folder = ("w1", "w3", "w2"), "block_sparse_moe"
        if family == "minimax_m2":
            more = {f"{folder}.e_score_correction_bias": (experts,)}
    else:
        width = config["moe_intermediate_size"]
    return (
        more
        | {f"{folder}.gate.weight": (experts, h)}
        | {
            f"{folder}.experts.{e}.{name}.weight": (h, width) if name == names[2] else (width, h)
            for e in range(experts)
            for name in names
        }
    )


def _with_shared_experts(config: dict[str, Any], h: int) -> dict[str, tuple[int, ...]]:
    count, width = config["n_routed_experts"], config["moe_intermediate_size"]
    blocks = {f"experts.{e}": width for e in range(count)}
    blocks["shared_experts"] = width * config["n_shared_experts"]
    shapes = {
        f"mlp.{block}.{name}_proj.weight": (h, size) if name == "down" else (size, h)
        for block, size in blocks.items()
        for name in ("gate", "up", "down")
    }
    gate = {"mlp.gate.weight": (count, h), "mlp.gate.e_score_correction_bias": (count,)}
    return shapes | gate


def tensors_of(config: dict[str, Any], seed: int = 0, dtype: Any = np.float32) -> dict[str, Any]:
    """Random values under which attention is peaked and logits are of order 1."""
    rng = np.random.default_rng(seed)
    tensors = {}
    for name, shape in shapes_of(config).items():
        values = rng.standard_normal(shape)
        if name.endswith("norm.weight"):
            values = np.exp(0.2 * values) - config["model_type"].startswith("gemma")
        elif name.endswith("bias"):
            values *= 0.1 if "correction" in name else 0.5
        else:
            values *= 2.0 / np.sqrt(shape[-1])
        tensors[name] = values.astype(dtype)
    return tensors


def write(folder: Path, config: dict[str, Any], tensors: dict[str, Any], shards: int = 1) -> Path:
    """Write a checkpoint as transformers does, with an index where it is sharded."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    if shards == 1:
        save_file(tensors, folder / "model.safetensors")
        return folder
    weight_map = {}
    for shard in range(shards):
        file = f"model-{shard + 1:05d}-of-{shards:05d}.safetensors"
        part = dict(list(tensors.items())[shard::shards])
        save_file(part, folder / file)
        weight_map |= dict.fromkeys(part, file)
    index = {"metadata": {}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder
