"""Supported model families: one reader of configs each, in `FAMILIES`.

A new family needs a function from its config to the `ModelSpec` fields that differ from the common
ones, and an entry with transformers' defaults. Other tensor names also need an entry in
`c2c.transformer.weights.layout`; the engine then runs the family.
"""

import difflib
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from c2c.errors import SettingError
from c2c.models.reader import Reader
from c2c.models.spec import Latent, LinearAttention

__all__ = ["FAMILIES", "RECIPE", "Family", "nearest"]

RECIPE = "docs/recipes.md, 'A model family', has the recipe."


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """Reader of configs of one model_type.

    Attributes:
      fields: function that returns the spec's fields beyond the common ones.
      defaults: transformers' defaults for absent fields; a null field is not absent.
      windowed: function from a config without layer names to the layers with a window; None if a
        window in the config has no effect.
      names_layers: whether transformers reads the layer kinds that a config names.
      turns_part: whether it reads the fraction of a head that is rotated.
    """

    fields: Callable[[Reader], dict[str, Any]]
    defaults: Mapping[str, Any] = field(default_factory=dict)
    windowed: Callable[[Reader, int], Iterable[int]] | None = None
    names_layers: bool = True
    turns_part: bool = False


def nearest(family: object, config: Mapping[str, Any]) -> str:
    """Return the family most similar to an unknown one, by name, else by fields.

    >>> nearest("gemma4", {}), nearest("hy", {"kv_lora_rank": 512})
    ('gemma3', 'deepseek_v3')
    """
    if found := difflib.get_close_matches(str(family), FAMILIES, n=1, cutoff=0.7):
        return found[0]
    marks = {
        "deepseek_v3": ("kv_lora_rank",),
        "qwen3_next": ("linear_num_value_heads", "full_attention_interval"),
        "glm4_moe": ("n_shared_experts", "n_routed_experts"),
        "qwen3_moe": ("num_experts", "num_local_experts", "num_experts_per_tok"),
        "gemma2": ("final_logit_softcapping", "query_pre_attn_scalar"),
        "granite": ("residual_multiplier",),
    }
    return next((k for k, names in marks.items() if any(n in config for n in names)), "llama")


def _sizes(read: Reader) -> dict[str, Any]:
    return {
        "intermediate": read.whole("intermediate_size"),
        "max_position": read.whole("max_position_embeddings"),
    }


def _biases(read: Reader, *, out: bool) -> dict[str, Any]:
    bias = read.flag("attention_bias", default=False)
    return {"qkv_bias": bias, "o_bias": bias and out}


def _llama(read: Reader) -> dict[str, Any]:
    return (
        _sizes(read) | _biases(read, out=True) | {"mlp_bias": read.flag("mlp_bias", default=False)}
    )


def _qwen2(read: Reader) -> dict[str, Any]:
    # biases on q, k and v, without a config field
    return _sizes(read) | {"qkv_bias": True}


def _qwen3(read: Reader) -> dict[str, Any]:
    return _sizes(read) | _biases(read, out=True) | {"qk_norm": True}


def _mixtral(read: Reader) -> dict[str, Any]:
    width = read.whole("intermediate_size")
    return {
        "intermediate": width,
        "max_position": read.whole("max_position_embeddings"),
        "experts": read.whole("num_local_experts", "num_experts"),
        "experts_per_token": read.whole("num_experts_per_tok"),
        "moe_intermediate": width,
    }


def _qwen3_moe(read: Reader) -> dict[str, Any]:
    values = _qwen3(read)
    layers, step = read.layers(), read.whole("decoder_sparse_step", default=1)
    only = read.config.get("mlp_only_layers") or []
    if not isinstance(only, list) or not all(type(layer) is int for layer in only):
        raise SettingError(f"{read.where}.mlp_only_layers", only, "a list of layers")
    experts = read.whole("num_experts", "num_local_experts", least=0)
    dense = tuple(i for i in range(layers) if not experts or i in only or (i + 1) % step)
    if len(dense) == layers:
        return values
    return values | {
        "experts": experts,
        "experts_per_token": read.whole("num_experts_per_tok"),
        "moe_intermediate": read.whole("moe_intermediate_size"),
        "dense_layers": dense,
        "norm_topk": read.flag("norm_topk_prob", default=False),
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
        _sizes(read)
        | _biases(read, out=True)
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
    own = {"norm_place": "after", "qk_norm": True, "qk_norm_whole": True}
    return _sizes(read) | _biases(read, out=True) | own


def _granite(read: Reader) -> dict[str, Any]:
    return _llama(read) | {
        "embedding_scale": read.factor("embedding_multiplier", 1.0),
        "residual_scale": read.factor("residual_multiplier", 1.0),
        "attention_scale": read.factor("attention_multiplier", 1.0),
        "logit_scale": 1.0 / read.factor("logits_scaling", 1.0),
    }


def _glm4(read: Reader) -> dict[str, Any]:
    own = {"norms_per_layer": 4, "norm_place": "around", "rotary_interleaved": True}
    return _sizes(read) | _biases(read, out=False) | own


def _shared_experts(read: Reader) -> dict[str, Any]:
    """Read experts of DeepSeek-style configs, whose first layers are dense."""
    layers = read.layers()
    dense = min(layers, read.whole("first_k_dense_replace", default=0, least=0))
    width = read.whole("moe_intermediate_size")
    values = _sizes(read) | {
        "experts": read.whole("n_routed_experts", "num_experts"),
        "experts_per_token": read.whole("num_experts_per_tok"),
        "moe_intermediate": width,
        "shared_intermediate": width * read.whole("n_shared_experts", default=0, least=0),
        "dense_layers": tuple(range(dense)),
        "norm_topk": read.flag("norm_topk_prob", default=False),
        "routed_scale": read.factor("routed_scaling_factor", 1.0),
    }
    if dense == layers:
        names = ("experts", "experts_per_token", "moe_intermediate", "shared_intermediate")
        return values | dict.fromkeys(names, 0) | {"dense_layers": ()}
    return values | {
        "expert_groups": read.whole("n_group", default=1),
        "groups_per_token": read.whole("topk_group", default=1),
    }


def _glm4_moe(read: Reader) -> dict[str, Any]:
    own = {
        "qk_norm": read.flag("use_qk_norm", default=False),
        "router_sigmoid": True,
        "router_bias": True,
    }
    return _shared_experts(read) | _biases(read, out=False) | own


def _deepseek_v2(read: Reader) -> dict[str, Any]:
    read.demand("moe_layer_freq", 1, 1)
    read.demand("attention_bias", False, False)
    rank = read.config.get("q_lora_rank")
    latent = Latent(
        kv_rank=read.whole("kv_lora_rank"),
        rope_dim=read.whole("qk_rope_head_dim"),
        nope_dim=read.whole("qk_nope_head_dim"),
        value_dim=read.whole("v_head_dim"),
        q_rank=0 if rank is None else read.whole("q_lora_rank"),
    )
    own = {"latent": latent, "head_dim": latent.nope_dim + latent.rope_dim}
    return _shared_experts(read) | own


def _deepseek_v3(read: Reader) -> dict[str, Any]:
    # The block that predicts further tokens is left out, as by transformers.
    return _deepseek_v2(read) | {"router_sigmoid": True, "router_bias": True}


def _qwen3_next(read: Reader) -> dict[str, Any]:
    layers, kinds = read.layers(), read.config.get("layer_types")
    if kinds is None:
        step = read.whole("full_attention_interval", default=4)
        chosen = tuple(i for i in range(layers) if (i + 1) % step)
    else:
        chosen = tuple(i for i, kind in enumerate(kinds) if kind == "linear_attention")
    linear = LinearAttention(
        layers=chosen,
        key_heads=read.whole("linear_num_key_heads"),
        value_heads=read.whole("linear_num_value_heads"),
        key_dim=read.whole("linear_key_head_dim"),
        value_dim=read.whole("linear_value_head_dim"),
        kernel=read.whole("linear_conv_kernel_dim"),
    )
    return _qwen3_moe(read) | {
        "linear": linear if chosen else None,
        "attention_gate": True,
        "norm_offset": 1.0,
        "shared_intermediate": read.whole("shared_expert_intermediate_size"),
        "shared_gate": True,
    }


def _every_layer(_: Reader, layers: int) -> Iterable[int]:
    return range(layers)


def _the_last(read: Reader, layers: int) -> Iterable[int]:
    """Return the windowed layers of Qwen: all but the first max_window_layers."""
    full = read.whole("max_window_layers", default=layers, least=0)
    return range(min(layers, full), layers)


def _all_but_each(default: int) -> Callable[[Reader, int], Iterable[int]]:
    """Return Gemma's function of windowed layers: all but each n-th."""

    def windowed(read: Reader, layers: int) -> Iterable[int]:
        step = read.whole("sliding_window_pattern", default=default)
        return (i for i in range(layers) if (i + 1) % step)

    return windowed


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
    windowed=_all_but_each(2),
)  # fmt: skip
_GEMMA3 = Family(
    fields=_gemma3,
    defaults={
        **_GEMMA, "num_attention_heads": 8, "num_key_value_heads": 4, "vocab_size": 262208,
        "max_position_embeddings": 131072, "rope_theta": 1e6,
    },
    windowed=_all_but_each(6),
)  # fmt: skip
_QWEN2 = Family(fields=_qwen2, defaults=_QWEN_WINDOW, windowed=_the_last)
_DEEPSEEK_V3 = Family(fields=_deepseek_v3, defaults={"norm_topk_prob": True})

FAMILIES: dict[str, Family] = {
    "deepseek_v2": Family(fields=_deepseek_v2),
    "deepseek_v3": _DEEPSEEK_V3,
    "falcon": Family(fields=_falcon),
    "gemma2": _GEMMA2,
    "gemma3": _GEMMA3,
    "gemma3_text": _GEMMA3,
    "glm4": Family(
        fields=_glm4,
        defaults={"num_key_value_heads": 2, "head_dim": 128, "partial_rotary_factor": 0.5},
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
    "gpt_oss": Family(fields=_gpt_oss, windowed=_every_layer),
    "granite": Family(fields=_granite),
    "kimi_k2": _DEEPSEEK_V3,
    "llama": Family(fields=_llama),
    # no biases, whatever a config says
    "mistral": Family(
        fields=_sizes,
        defaults={"num_key_value_heads": 8, "sliding_window": 4096},
        windowed=_every_layer,
    ),
    "mixtral": Family(
        fields=_mixtral,
        defaults={"num_key_value_heads": 8, "rms_norm_eps": 1e-5, "rope_theta": 1e6},
        windowed=_every_layer,
        names_layers=False,
    ),
    "olmo2": Family(fields=_olmo2, defaults={"rms_norm_eps": 1e-5}),
    "phi3": Family(
        fields=_sizes,
        defaults={"rms_norm_eps": 1e-5},
        windowed=_every_layer,
        turns_part=True,
    ),
    "qwen2": _QWEN2,
    "qwen2_5_vl": Family(fields=_qwen2, windowed=_the_last),
    "qwen3": Family(fields=_qwen3, defaults={**_QWEN_WINDOW, "head_dim": 128}, windowed=_the_last),
    "qwen3_moe": Family(
        fields=_qwen3_moe,
        defaults={"num_key_value_heads": 4, "sliding_window": 4096},
        windowed=_every_layer,
        names_layers=False,
    ),
    "qwen3_next": Family(
        fields=_qwen3_next,
        defaults={
            "num_key_value_heads": 2, "head_dim": 256, "partial_rotary_factor": 0.25,
            "norm_topk_prob": True,
        },
        turns_part=True,
    ),
}  # fmt: skip
