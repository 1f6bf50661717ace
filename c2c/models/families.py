"""Supported families, a reader each, in `FAMILIES`."""

import difflib
import math
from collections.abc import Mapping
from typing import Any

from c2c.models.family import (
    Family,
    all_but_each,
    biases,
    deepseek_v2,
    deepseek_v3,
    every_layer,
    qwen2,
    qwen3,
    qwen3_moe,
    shared_experts,
    sizes,
    the_last,
)
from c2c.models.hybrids import HYBRIDS
from c2c.models.reader import Reader
from c2c.models.several_heads import SEVERAL_HEADS
from c2c.models.sparse_attention import SPARSE

__all__ = ["FAMILIES", "RECIPE", "Family", "nearest"]

RECIPE = "docs/recipes.md, 'A model family', has the recipe."


def nearest(family: object, config: Mapping[str, Any]) -> str:
    """Return the family most similar to an unknown one, by name or fields.

    >>> nearest("gemma7", {}), nearest("hy", {"kv_lora_rank": 512})
    ('gemma4', 'deepseek_v3')
    """
    if matches := difflib.get_close_matches(str(family), FAMILIES, n=1, cutoff=0.7):
        return matches[0]
    marks = {
        "deepseek_v3": ("kv_lora_rank",),
        "qwen3_next": ("linear_num_value_heads", "full_attention_interval"),
        "glm4_moe": ("n_shared_experts", "n_routed_experts"),
        "qwen3_moe": ("num_experts", "num_local_experts", "num_experts_per_tok"),
        "gemma2": ("final_logit_softcapping", "query_pre_attn_scalar"),
        "granite": ("residual_multiplier",),
    }
    return next((k for k, names in marks.items() if any(n in config for n in names)), "llama")


def _llama(read: Reader) -> dict[str, Any]:
    return sizes(read) | biases(read, out=True) | {"mlp_bias": read.flag("mlp_bias", default=False)}


def _mixtral(read: Reader) -> dict[str, Any]:
    width = read.whole("intermediate_size")
    return {
        "intermediate": width,
        "max_position": read.whole("max_position_embeddings"),
        "experts": read.whole("num_local_experts", "num_experts"),
        "experts_per_token": read.whole("num_experts_per_tok"),
        "moe_intermediate": width,
    }


def _gpt_oss(read: Reader) -> dict[str, Any]:
    bias = read.flag("attention_bias", default=True)
    width = read.whole("intermediate_size")
    return {
        "intermediate": width,
        "max_position": read.whole("max_position_embeddings"),
        "qkv_bias": bias,
        "o_bias": bias,
        "attention_sinks": True,
        "experts": read.whole("num_local_experts", "num_experts"),
        "experts_per_token": read.whole("num_experts_per_tok", "experts_per_token"),
        "moe_intermediate": width,
        "expert_bias": True,
    }


def _falcon(read: Reader) -> dict[str, Any]:
    read.demand("new_decoder_architecture", False, False)
    read.demand("parallel_attn", True, True)
    read.demand("alibi", False, False)
    read.demand("bias", False, False)
    hidden = read.whole("hidden_size")
    eps = read.config.get("layer_norm_epsilon")
    return {
        "kv_heads": 1
        if read.flag("multi_query", default=True)
        else read.whole("num_attention_heads"),
        "intermediate": read.whole("ffn_hidden_size", default=4 * hidden),
        # Falcon's published configs name neither the context nor that embeddings are tied.
        "max_position": read.whole("max_position_embeddings", default=2048),
        "tie_embeddings": read.flag("tie_word_embeddings", default=True),
        "gated_mlp": False,
        "norms_per_layer": 1,  # attention and feed-forward share one
        "norm_bias": True,
        "norm_eps": read.number("layer_norm_epsilon", eps, 1e-5),
    }


def _gemma2(read: Reader) -> dict[str, Any]:
    hidden = read.whole("hidden_size")
    return (
        sizes(read)
        | biases(read, out=True)
        | {
            "norms_per_layer": 4,
            "norm_place": "around",
            "norm_offset": 1.0,
            "embedding_scale": math.sqrt(hidden),
            "attention_scale": read.factor("query_pre_attn_scalar", 256.0) ** -0.5,
            "attention_cap": _cap(read, "attn_logit_softcapping"),
            "logit_cap": _cap(read, "final_logit_softcapping"),
            "activation": str(read.config["hidden_activation"]),
        }
    )


def _gemma3(read: Reader) -> dict[str, Any]:
    rope = read.config.get("rope_parameters")
    local = rope.get("sliding_attention") if isinstance(rope, Mapping) else None
    theta = local.get("rope_theta") if isinstance(local, Mapping) else None
    base = read.factor("rope_local_base_freq", 10000.0)
    return _gemma2(read) | {
        "qk_norm": True,
        "local_rope_theta": read.number("rope_parameters.rope_theta", theta, base),
    }


def _cap(read: Reader, name: str) -> float:
    return 0.0 if read.config.get(name) is None else read.factor(name, 1.0)


def _olmo2(read: Reader) -> dict[str, Any]:
    fields = {"norm_place": "after", "qk_norm": True, "qk_norm_whole": True}
    return sizes(read) | biases(read, out=True) | fields


def _granite(read: Reader) -> dict[str, Any]:
    return _llama(read) | {
        "embedding_scale": read.factor("embedding_multiplier", 1.0),
        "residual_scale": read.factor("residual_multiplier", 1.0),
        "attention_scale": read.factor("attention_multiplier", 1.0),
        "logit_scale": 1.0 / read.factor("logits_scaling", 1.0),
    }


def _glm4(read: Reader) -> dict[str, Any]:
    fields = {"norms_per_layer": 4, "norm_place": "around", "rotary_interleaved": True}
    return sizes(read) | biases(read, out=False) | fields


def _glm4_moe(read: Reader) -> dict[str, Any]:
    fields = {
        "qk_norm": read.flag("use_qk_norm", default=False),
        "router_sigmoid": True,
        "router_bias": True,
    }
    return shared_experts(read) | biases(read, out=False) | fields


_QWEN_WINDOW = {"num_key_value_heads": 32, "sliding_window": 4096, "max_window_layers": 28}
_GEMMA = {
    "head_dim": 256, "sliding_window": 4096, "tie_word_embeddings": True,
    "hidden_activation": "gelu_pytorch_tanh", "query_pre_attn_scalar": 256,
}  # fmt: skip
_GEMMA2 = Family(
    fields=_gemma2,
    defaults={
        **_GEMMA, "num_key_value_heads": 4, "max_position_embeddings": 8192, "vocab_size": 256000,
        "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0,
    },
    windowed=all_but_each(2),
)  # fmt: skip
_GEMMA3 = Family(
    fields=_gemma3,
    defaults={
        **_GEMMA, "num_attention_heads": 8, "num_key_value_heads": 4, "vocab_size": 262208,
        "max_position_embeddings": 131072, "rope_theta": 1e6,
    },
    windowed=all_but_each(6),
)  # fmt: skip
_QWEN2 = Family(fields=qwen2, defaults=_QWEN_WINDOW, windowed=the_last)
_QWEN3 = Family(fields=qwen3, defaults={**_QWEN_WINDOW, "head_dim": 128}, windowed=the_last)
_QWEN3_MOE = Family(
    fields=qwen3_moe,
    defaults={"num_key_value_heads": 4, "sliding_window": 4096},
    windowed=every_layer,
    names_layers=False,
)
_KIMI = Family(fields=deepseek_v3, defaults={"norm_topk_prob": True})

# A new family needs a function from its config to the `ModelSpec` fields that differ from the
# common ones, and an entry with transformers' defaults. Other tensor names also need an entry in
# `NAMES` of the transformer's layout; the engine then runs the family.
FAMILIES: dict[str, Family] = {
    "deepseek_v2": Family(fields=deepseek_v2),
    "deepseek_v3": Family(
        fields=deepseek_v3,
        defaults={
            "norm_topk_prob": True, "n_group": 8, "topk_group": 4, "routed_scaling_factor": 2.5,
        },
    ),
    "falcon": Family(fields=_falcon),
    "gemma2": _GEMMA2,
    "gemma3": _GEMMA3,
    "gemma3_text": _GEMMA3,
    "glm4": Family(
        fields=_glm4,
        defaults={
            "num_key_value_heads": 2, "head_dim": 128, "partial_rotary_factor": 0.5,
            "rms_norm_eps": 1.5625e-7,
        },
        turns_part=True,
    ),
    "glm4_moe": Family(
        fields=_glm4_moe,
        defaults={
            "num_key_value_heads": 8, "partial_rotary_factor": 0.5, "rms_norm_eps": 1e-5,
            "norm_topk_prob": True,
        },
        turns_part=True,
    ),
    "gpt_oss": Family(fields=_gpt_oss, windowed=every_layer),
    "granite": Family(fields=_granite),
    "kimi_k2": _KIMI,
    "kimi_k25": _KIMI,
    "llama": Family(fields=_llama),
    "mimo": Family(fields=qwen2, windowed=the_last),
    # no biases, whatever a config says
    "mistral": Family(
        fields=sizes,
        defaults={"num_key_value_heads": 8, "sliding_window": 4096},
        windowed=every_layer,
    ),
    "mixtral": Family(
        fields=_mixtral,
        defaults={"num_key_value_heads": 8, "rms_norm_eps": 1e-5, "rope_theta": 1e6},
        windowed=every_layer,
        names_layers=False,
    ),
    "olmo2": Family(fields=_olmo2, defaults={"rms_norm_eps": 1e-5}),
    "phi3": Family(
        fields=sizes,
        defaults={"rms_norm_eps": 1e-5},
        windowed=every_layer,
        turns_part=True,
    ),
    "qwen2": _QWEN2,
    "qwen2_5_vl": Family(fields=qwen2, windowed=the_last),
    "qwen3": _QWEN3,
    "qwen3_moe": _QWEN3_MOE,
    "qwen3_vl": _QWEN3,
    "qwen3_vl_moe": _QWEN3_MOE,
    **HYBRIDS,
    **SEVERAL_HEADS,
    **SPARSE,
}  # fmt: skip
