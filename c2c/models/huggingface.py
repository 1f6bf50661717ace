"""From a Hugging Face config.json to a ModelSpec."""

import math
from collections.abc import Mapping, Sequence
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

# What transformers takes where a config.json does not say; a null is another thing.
_DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "mistral": {"num_key_value_heads": 8, "sliding_window": 4096},
    "mixtral": {"num_key_value_heads": 8, "rms_norm_eps": 1e-5, "rope_theta": 1e6},
    "qwen2": {"num_key_value_heads": 32, "sliding_window": 4096, "max_window_layers": 28},
    "qwen3": {
        "num_key_value_heads": 32,
        "head_dim": 128,
        "sliding_window": 4096,
        "max_window_layers": 28,
    },
    "qwen3_moe": {"num_key_value_heads": 4, "sliding_window": 4096},
}
_MOST_LAYERS = 4096
_DTYPE_BYTES = {"bfloat16": 2, "float16": 2, "float32": 4, "float64": 8}


def from_hf_config(
    config: Mapping[str, Any], name: str, *, families: Sequence[str] = FAMILIES
) -> ModelSpec:
    """Build a spec from the content of a Hugging Face config.json.

    Reads both spellings of what transformers 4 and 5 write differently (rope_theta or
    rope_parameters, torch_dtype or dtype, num_experts or num_local_experts, head_dim present,
    null or absent). Of a vision-language model (qwen2_5_vl) only the language model is described.
    gpt_oss is described as BF16, into which its published 4-bit experts unpack.

    Args:
      config: the parsed JSON.
      name: the spec's name; begins the field names in errors.
      families: those that are of use to the caller.

    Raises:
      SettingError: an architecture that is not supported, or a field that is missing or wrong.
    """
    family = config.get("model_type")
    if family not in families:
        raise SettingError(f"model.{name}.model_type", family, f"one of {', '.join(families)}")
    inner = config.get("text_config")
    if isinstance(inner, Mapping):  # a vision-language config of transformers 5
        config = {**config, **inner}
    config = {**_DEFAULTS.get(str(family), {}), **config}
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

    def layers(self) -> int:
        """Return the number of layers, which lists of that length are made of."""
        found = self.whole("num_hidden_layers")
        if found > _MOST_LAYERS:
            raise SettingError(f"{self.where}.num_hidden_layers", found, f"at most {_MOST_LAYERS}")
        return found

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

    def numbers(self, where: str, values: Mapping[str, Any], name: str) -> tuple[float, ...]:
        """Return a list of numbers above 0 as a tuple."""
        found = values.get(name)
        if not isinstance(found, list) or not found:
            raise SettingError(f"{self.where}.{where}.{name}", found, "a list of numbers above 0")
        return tuple(self.number(f"{where}.{name}", value, 1.0) for value in found)

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
        "layers": read.layers(),
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
    # Where both are there, transformers 5 takes the older.
    where = "rope_scaling" if config.get("rope_scaling") else "rope_parameters"
    rope = config.get(where) or {}
    if not isinstance(rope, Mapping):
        raise SettingError(f"{read.where}.{where}", rope, "a mapping, or null")
    # one entry for each kind of layer, or one for all
    inner = rope.get("full_attention")
    rope = inner if isinstance(inner, Mapping) else rope

    def either(name: str, default: float) -> float:
        if rope.get(name) is not None:
            return read.number(f"{where}.{name}", rope[name], default)
        return read.number(name, config.get(name), default)

    values: dict[str, Any] = {
        "rope_theta": either("rope_theta", 10000.0),
        "rotary_fraction": either("partial_rotary_factor", 1.0),
    }
    kind = rope.get("rope_type", rope.get("type"))
    if kind not in (None, "default"):
        values["rope_scaling"] = _rope_scaling(read, where, str(kind), rope)
    return values


def _rope_scaling(read: _Reader, where: str, kind: str, rope: Mapping[str, Any]) -> RopeScaling:
    def number(name: str, default: float) -> float:
        return read.number(f"{where}.{name}", rope.get(name), default)

    most = read.number("max_position_embeddings", read.config.get("max_position_embeddings"), 8192)
    name = "original_max_position_embeddings"
    # Beside the other rotary settings it has the last word.
    outside = read.number(name, read.config.get(name), 0.0)
    original = most if kind == "dynamic" else outside or number(name, most)
    factor = number("factor", most / original)
    values: dict[str, Any] = {}
    if kind == "yarn":
        values = {
            "beta_fast": number("beta_fast", 32),
            "beta_slow": number("beta_slow", 1),
            "truncate": rope.get("truncate") is not False,
        }
        scales = number("mscale", 0.0), number("mscale_all_dim", 0.0)
        usual = _stretch(factor, scales[0]) / _stretch(factor, scales[1])
        usual = usual if all(scales) else _stretch(factor, 1.0)
        values["attention_factor"] = number("attention_factor", usual)
    elif kind == "longrope":
        values = {name: read.numbers(where, rope, name) for name in ("short_factor", "long_factor")}
        usual = math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 else 1.0
        values["attention_factor"] = number("attention_factor", usual)
    return RopeScaling(
        kind=kind,
        factor=factor,
        low_freq_factor=number("low_freq_factor", 1),
        high_freq_factor=number("high_freq_factor", 4),
        original_max_position=int(original),
        **values,
    )


def _stretch(factor: float, scale: float) -> float:
    """Return YaRN's factor of attention (its section 3.4) for a factor of the context."""
    return 1.0 + 0.1 * scale * math.log(factor) if factor > 1 else 1.0


def _dense(read: _Reader) -> dict[str, Any]:
    # Qwen2 has biases on q, k and v, and no field that says so; Mistral has none, whatever is said.
    family = read.config["model_type"]
    always = family in ("qwen2", "qwen2_5_vl", "qwen2_5_vl_text")
    bias = family in ("llama", "qwen3") and read.flag("attention_bias", default=False)
    return {
        "intermediate": read.whole("intermediate_size"),
        "max_position": read.whole("max_position_embeddings"),
        "qkv_bias": always or bias,
        "o_bias": bias,
        "mlp_bias": family == "llama" and read.flag("mlp_bias", default=False),
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
    bias = read.flag("attention_bias", default=False)
    values = {
        "intermediate": read.whole("intermediate_size"),
        "max_position": read.whole("max_position_embeddings"),
        "qkv_bias": bias,
        "o_bias": bias,
        "qk_norm": True,
    }
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
    # A Llama has no window, whatever its config says; -1 and 0 say that there is none.
    given = read.config.get("sliding_window")
    window = 0 if not given or given == -1 else read.whole("sliding_window")
    if (
        not window
        or family == "llama"
        or (family.startswith("qwen") and not read.flag("use_sliding_window", default=False))
    ):
        return {}
    # transformers reads the kinds of layers in these families only (of Mistral since version 5)
    named = family not in ("mixtral", "qwen3_moe")
    kinds = read.config.get("layer_types") if named else None
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
