"""Readers shared by families."""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from c2c.errors import SettingError
from c2c.models.reader import Reader
from c2c.models.spec import Latent

__all__ = [
    "Family",
    "all_but_each",
    "biases",
    "deepseek_v2",
    "deepseek_v3",
    "dense_layers",
    "every_layer",
    "qwen2",
    "qwen3",
    "qwen3_moe",
    "shared_experts",
    "sizes",
    "stretch",
    "the_last",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """Reader of configs of one model_type.

    Attributes:
      fields: from a config to uncommon fields of the spec.
      defaults: transformers' for absent fields; null is not absent.
      windowed: from a config without layer names to windowed layers; None: none.
      names_layers: whether transformers reads a config's layer kinds.
      turns_part: whether it reads a head's rotated fraction.
      prepare: from a config to other families' field names.
      modules: starts of modules' names unlike `gemms`'.
    """

    fields: Callable[[Reader], dict[str, Any]]
    defaults: Mapping[str, Any] = field(default_factory=dict)
    windowed: Callable[[Reader, int], Iterable[int]] | None = None
    names_layers: bool = True
    turns_part: bool = False
    prepare: Callable[[Mapping[str, Any]], Mapping[str, Any]] | None = None
    modules: Mapping[str, str] = field(default_factory=dict)


def sizes(read: Reader) -> dict[str, Any]:
    """Read the widths that every config has."""
    return {
        "intermediate": read.whole("intermediate_size"),
        "max_position": read.whole("max_position_embeddings"),
    }


def biases(read: Reader, *, out: bool) -> dict[str, Any]:
    """Read attention's biases, that of its output if `out`."""
    bias = read.flag("attention_bias", default=False)
    return {"qkv_bias": bias, "o_bias": bias and out}


def qwen2(read: Reader) -> dict[str, Any]:
    """Read biases of q, k and v."""
    # biases on q, k and v, without a config field
    return sizes(read) | {"qkv_bias": True}


def qwen3(read: Reader) -> dict[str, Any]:
    """Read attention with norms of q and k."""
    return sizes(read) | biases(read, out=True) | {"qk_norm": True}


def qwen3_moe(read: Reader) -> dict[str, Any]:
    """Read Qwen3's experts."""
    values = qwen3(read)
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


def dense_layers(read: Reader) -> tuple[int, ...]:
    """Read the layers without experts, by kinds, flags or number."""
    layers = read.layers()
    for name, sparse in (("mlp_layer_types", "sparse"), ("moe_layer_freq", 1)):
        kinds = read.config.get(name)
        if isinstance(kinds, list):
            if len(kinds) < layers:
                raise SettingError(f"{read.where}.{name}", kinds, f"a list of {layers} kinds")
            return tuple(i for i in range(layers) if kinds[i] != sparse)
    return tuple(range(min(layers, read.whole("first_k_dense_replace", default=0, least=0))))


def shared_experts(read: Reader) -> dict[str, Any]:
    """Read experts of DeepSeek-style configs."""
    dense, width = dense_layers(read), read.whole("moe_intermediate_size")
    values = sizes(read) | {
        "experts": read.whole("n_routed_experts", "num_experts", "num_local_experts"),
        "experts_per_token": read.whole("num_experts_per_tok"),
        "moe_intermediate": width,
        "shared_intermediate": width * read.whole("n_shared_experts", default=0, least=0),
        "dense_layers": dense,
        "norm_topk": read.flag("norm_topk_prob", default=False),
        "routed_scale": read.factor("routed_scaling_factor", 1.0),
    }
    if len(dense) == read.layers():
        names = ("experts", "experts_per_token", "moe_intermediate", "shared_intermediate")
        return values | dict.fromkeys(names, 0) | {"dense_layers": ()}
    return values | {
        "expert_groups": read.whole("n_group", default=1),
        "groups_per_token": read.whole("topk_group", default=1),
    }


def deepseek_v2(read: Reader) -> dict[str, Any]:
    """Read latent attention beside experts and shared ones."""
    if not isinstance(read.config.get("moe_layer_freq"), list):
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
    fields = {"latent": latent, "head_dim": latent.nope_dim + latent.rope_dim}
    return shared_experts(read) | fields


def deepseek_v3(read: Reader) -> dict[str, Any]:
    """Read latent attention with biased routers."""
    # The block that predicts further tokens is left out, as by transformers.
    values = deepseek_v2(read) | {"router_sigmoid": True, "router_bias": True}
    values["rotary_interleaved"] = read.flag("rope_interleave", default=True)
    rope = read.config.get("rope_scaling") or read.config.get("rope_parameters") or {}
    factor, scale = (read.number(f"rope_scaling.{n}", rope.get(n) or None, 1.0)
                     for n in ("factor", "mscale_all_dim"))  # fmt: skip
    if rope.get("mscale_all_dim"):
        values["attention_scale"] = values["head_dim"] ** -0.5 * stretch(factor, scale) ** 2
    return values


def stretch(factor: float, scale: float) -> float:
    """Return YaRN's factor of scores for a stretched context."""
    return 1.0 + 0.1 * scale * math.log(factor) if factor > 1 else 1.0


def every_layer(_: Reader, layers: int) -> Iterable[int]:
    """Return all layers."""
    return range(layers)


def the_last(read: Reader, layers: int) -> Iterable[int]:
    """Return all layers but the first max_window_layers."""
    full = read.whole("max_window_layers", default=layers, least=0)
    return range(min(layers, full), layers)


def all_but_each(default: int) -> Callable[[Reader, int], Iterable[int]]:
    """Return a function: all layers but each n-th."""

    def windowed(read: Reader, layers: int) -> Iterable[int]:
        step = read.whole("sliding_window_pattern", default=default)
        return (i for i in range(layers) if (i + 1) % step)

    return windowed
