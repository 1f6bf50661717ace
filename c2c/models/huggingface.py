"""From a Hugging Face config.json to a ModelSpec."""

import math
from collections.abc import Mapping
from typing import Any

from c2c.errors import SettingError
from c2c.models.spec import ModelSpec, RopeScaling

__all__ = ["FAMILIES", "from_hf_config"]

FAMILIES = (
    "falcon",
    "gpt_oss",
    "llama",
    "mistral",
    "mixtral",
    "qwen2",
    "qwen2_5_vl",
    "qwen3",
    "qwen3_moe",
)

_DTYPE_BYTES = {"bfloat16": 2, "float16": 2, "float32": 4, "float64": 8}


def from_hf_config(config: Mapping[str, Any], name: str) -> ModelSpec:
    """Build a spec from the content of a Hugging Face config.json.

    Reads both spellings of what transformers 4 and 5 write differently (rope_theta or
    rope_parameters, torch_dtype or dtype, num_experts or num_local_experts, head_dim present,
    null or absent). Of a vision-language model (qwen2_5_vl) only the language model is described.
    gpt_oss is described as BF16, into which its published 4-bit experts unpack.

    Args:
      config: the parsed JSON.
      name: the spec's name; begins the field names in errors.

    Raises:
      SettingError: an architecture that is not supported, or a field that is missing or wrong.
    """
    family = config.get("model_type")
    if family not in FAMILIES:
        raise SettingError(f"model.{name}.model_type", family, f"one of {', '.join(FAMILIES)}")
    inner = config.get("text_config")
    if isinstance(inner, Mapping):  # a vision-language config of transformers 5
        config = {**config, **inner}
    read = _Reader(config, f"model.{name}")
    if config.get("quantization_config") and family != "gpt_oss":
        raise SettingError(
            f"model.{name}.quantization_config", config["quantization_config"],
            "unquantised weights", "Take the config of the model it was quantised from.",
        )  # fmt: skip
    values = _common(read)
    build = {"falcon": _falcon, "gpt_oss": _gpt_oss, "mixtral": _mixtral, "qwen3_moe": _qwen3_moe}
    values |= build.get(str(family), _dense)(read)
    values |= _windows(read, str(family), values["layers"])
    return ModelSpec(name=name, family=str(family), **values)


class _Reader:
    """Typed access to a config; errors name the model and the field."""

    def __init__(self, config: Mapping[str, Any], where: str) -> None:
        self.config = config
        self.where = where

    def whole(self, *names: str, default: int | None = None, least: int = 1) -> int:
        """Return the first of several spellings, a whole number of at least `least`."""
        wanted = f"a whole number, at least {least}"
        for name in names:
            value = self.config.get(name)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise SettingError(f"{self.where}.{name}", value, wanted)
            return value
        if default is None:
            raise SettingError(f"{self.where}.{names[0]}", None, wanted, "It is missing.")
        return default

    def flag(self, name: str, *, default: bool) -> bool:
        value = self.config.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise SettingError(f"{self.where}.{name}", value, "true or false")
        return value

    def number(self, name: str, value: Any, default: float) -> float:
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise SettingError(f"{self.where}.{name}", value, "a number above 0")
        if not math.isfinite(value) or value <= 0:
            raise SettingError(f"{self.where}.{name}", value, "a number above 0")
        return float(value)

    def demand(self, name: str, value: Any, wanted: Any) -> None:
        """Raise unless a field that would change the layers' shapes has the supported value."""
        found = self.config.get(name, value)
        if found != wanted:
            raise SettingError(
                f"{self.where}.{name}", found, f"{wanted!r}, the only form supported"
            )


def _common(read: _Reader) -> dict[str, Any]:
    hidden = read.whole("hidden_size")
    heads = read.whole("num_attention_heads")
    if read.config.get("head_dim") is None and hidden % heads:
        raise SettingError(
            f"{read.where}.num_attention_heads", heads,
            f"a divisor of hidden_size ({hidden}) where head_dim is not given",
        )  # fmt: skip
    return {
        "layers": read.whole("num_hidden_layers"),
        "hidden": hidden,
        "heads": heads,
        "kv_heads": read.whole("num_key_value_heads", default=heads),
        "head_dim": read.whole("head_dim", default=max(1, hidden // heads)),
        "vocab": read.whole("vocab_size"),
        "tie_embeddings": read.flag("tie_word_embeddings", default=False),
        "dtype_bytes": _dtype_bytes(read),
        "activation": str(read.config.get("hidden_act") or "silu"),
        **_rope(read),
        "norm_eps": read.number("rms_norm_eps", read.config.get("rms_norm_eps"), 1e-6),
    }


def _dtype_bytes(read: _Reader) -> int:
    for name in ("dtype", "torch_dtype"):
        value = read.config.get(name)
        if value is not None:
            size = _DTYPE_BYTES.get(str(value).removeprefix("torch."))
            if size is None:
                raise SettingError(
                    f"{read.where}.{name}", value, f"one of {', '.join(_DTYPE_BYTES)}"
                )
            return size
    return 2


def _rope(read: _Reader) -> dict[str, Any]:
    """Read the rotary embedding: one mapping in transformers 5, fields of the config in 4."""
    config = read.config
    rope, where = config.get("rope_parameters"), "rope_parameters"
    if isinstance(rope, Mapping):
        # one entry for each kind of layer, or one for all
        inner = rope.get("full_attention")
        rope = inner if isinstance(inner, Mapping) else rope
    else:
        rope, where = config.get("rope_scaling") or {}, "rope_scaling"
        if not isinstance(rope, Mapping):
            raise SettingError(f"{read.where}.rope_scaling", rope, "a mapping, or null")
    usual = 1e6 if config["model_type"] == "mixtral" else 10000.0

    def either(name: str, default: float) -> float:
        if rope.get(name) is not None:
            return read.number(f"{where}.{name}", rope[name], default)
        return read.number(name, config.get(name), default)

    values: dict[str, Any] = {
        "rope_theta": either("rope_theta", usual),
        "rotary_fraction": either("partial_rotary_factor", 1.0),
    }
    kind = rope.get("rope_type", rope.get("type"))
    if kind not in (None, "default"):
        original = rope.get(
            "original_max_position_embeddings", config.get("original_max_position_embeddings")
        )
        if original is None:
            original = config.get("max_position_embeddings", 8192)
        values["rope_scaling"] = RopeScaling(
            kind=str(kind),
            factor=read.number(f"{where}.factor", rope.get("factor"), 1.0),
            low_freq_factor=read.number(f"{where}.low_freq_factor", rope.get("low_freq_factor"), 1),
            high_freq_factor=read.number(
                f"{where}.high_freq_factor", rope.get("high_freq_factor"), 4
            ),
            original_max_position=int(
                read.number(f"{where}.original_max_position_embeddings", original, 8192)
            ),
        )
    return values


def _dense(read: _Reader) -> dict[str, Any]:
    # Qwen2 has biases on q, k and v, and no field that says so.
    family = read.config["model_type"]
    always = family in ("qwen2", "qwen2_5_vl", "qwen2_5_vl_text")
    bias = read.flag("attention_bias", default=False)
    return {
        "intermediate": read.whole("intermediate_size"),
        "max_position": read.whole("max_position_embeddings"),
        "qkv_bias": always or bias,
        "o_bias": bias and not always,
        "mlp_bias": read.flag("mlp_bias", default=False),
        "qk_norm": family == "qwen3",
    }


def _mixtral(read: _Reader) -> dict[str, Any]:
    width = read.whole("intermediate_size")
    return {
        "intermediate": width,
        "max_position": read.whole("max_position_embeddings"),
        "experts": read.whole("num_local_experts", "num_experts"),
        "experts_per_token": read.whole("num_experts_per_tok"),
        "moe_intermediate": width,
    }


def _qwen3_moe(read: _Reader) -> dict[str, Any]:
    read.demand("decoder_sparse_step", 1, 1)
    if read.config.get("mlp_only_layers"):
        read.demand("mlp_only_layers", [], [])
    bias = read.flag("attention_bias", default=False)
    return {
        "intermediate": read.whole("intermediate_size"),
        "max_position": read.whole("max_position_embeddings"),
        "qkv_bias": bias,
        "o_bias": bias,
        "qk_norm": True,
        "experts": read.whole("num_experts", "num_local_experts"),
        "experts_per_token": read.whole("num_experts_per_tok"),
        "moe_intermediate": read.whole("moe_intermediate_size"),
        "norm_topk": read.flag("norm_topk_prob", default=False),
    }


def _gpt_oss(read: _Reader) -> dict[str, Any]:
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


def _falcon(read: _Reader) -> dict[str, Any]:
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


def _windows(read: _Reader, family: str, layers: int) -> dict[str, Any]:
    window = read.whole("sliding_window", default=0) if read.config.get("sliding_window") else 0
    if not window or (
        family.startswith("qwen") and not read.flag("use_sliding_window", default=False)
    ):
        return {}
    kinds = read.config.get("layer_types")
    if kinds is not None:
        if not isinstance(kinds, list) or len(kinds) != layers:
            raise SettingError(f"{read.where}.layer_types", kinds, f"a list of {layers} names")
        windowed = [i for i, kind in enumerate(kinds) if kind == "sliding_attention"]
    elif family.startswith("qwen") and family != "qwen3_moe":
        # The first max_window_layers layers see everything.
        full = read.whole("max_window_layers", default=layers, least=0)
        windowed = list(range(min(layers, full), layers))
    else:
        windowed = list(range(layers))
    if len(windowed) == layers:
        return {"sliding_window": window}
    if not windowed:
        return {}
    return {
        "partial_window": window,
        "partial_window_layers": len(windowed),
        "window_layers": tuple(windowed),
    }
