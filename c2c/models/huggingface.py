"""Conversion of config.json to a ModelSpec."""

import math
from collections.abc import Collection, Mapping
from dataclasses import MISSING, fields
from typing import Any

from c2c.errors import DataError, SettingError, check_keys, located
from c2c.models.families import FAMILIES, RECIPE, nearest
from c2c.models.family import Family, stretch, the_last
from c2c.models.quantisation import FIELDS, quantised
from c2c.models.reader import Reader
from c2c.models.spec import ModelSpec, RopeScaling

__all__ = ["from_hf_config"]

_DTYPE_BYTES = {"bfloat16": 2, "float16": 2, "float32": 4, "float64": 8}
_SAME_ROPE = {"mrope": "default", "su": "longrope"}  # other names; a text's positions are equal


def from_hf_config(
    config: Mapping[str, Any], name: str, *, families: Collection[str] = FAMILIES.keys()
) -> ModelSpec:
    """Build a spec from a Hugging Face config.json of transformers 4 or 5.

    A vision-language model's spec is its language model's.

    Args:
      name: the spec's, and prefix in errors.

    Raises:
      SettingError: an unsupported architecture, or a missing or wrong field.
    """
    family = config.get("model_type")
    inner = config.get("text_config")
    if isinstance(inner, Mapping):  # a vision-language model
        config = {**config, **inner}
    if family not in families:
        field = f"model.{name}.model_type"
        if isinstance(family, str) and family in FAMILIES:
            run = f"one of {', '.join(families)}, which are computed"
            raise SettingError(field, family, run, "Only the simulator supports it.")
        near = f"{nearest(family, config)} is nearest. {RECIPE}"
        raise SettingError(field, family, f"one of {', '.join(families)}", near)
    kind = FAMILIES[str(family)]
    if not isinstance(kind, Family):
        raise DataError(f"family {family}", f"it is {kind!r}, not a Family")
    config = {**kind.defaults, **config}
    if kind.prepare is not None:
        config |= kind.prepare(config)
    read = Reader(config, f"model.{name}")
    values = _common(read) | _fields(read, str(family), kind)
    if not kind.turns_part and values["rope_scaling"] is None:
        values["rotary_fraction"] = 1.0
    values |= _windows(read, kind, values["layers"])
    for one in fields(ModelSpec):
        if one.default is MISSING and one.name not in {"name", "family", *values}:
            raise DataError(f"family {family}", f"its fields lack {one.name}")
    spec = ModelSpec(name=name, family=str(family), **values)
    for name_of_field in FIELDS:
        if form := config.get(name_of_field):
            return quantised(spec, form, f"{read.where}.{name_of_field}")
    return spec


def _fields(read: Reader, family: str, kind: Family) -> dict[str, Any]:
    try:
        result: object = kind.fields(read)
    except (SettingError, DataError):
        raise
    except Exception as error:
        if kind.fields.__module__.startswith("c2c."):
            raise
        raise DataError(f"family {family}", located(error, kind.fields)) from error
    if not isinstance(result, dict):
        raise DataError(f"family {family}", f"its fields are {result!r}, not a dict")
    check_keys(result, [one.name for one in fields(ModelSpec)], f"family {family}")
    return result


def _common(read: Reader) -> dict[str, Any]:
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
        **({"rope_scaling": None} | _rope(read)),
        "norm_eps": read.number("rms_norm_eps", read.config.get("rms_norm_eps"), 1e-6),
    }


def _dtype_bytes(read: Reader) -> int:
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


def _rope(read: Reader) -> dict[str, Any]:
    config = read.config
    # If both are present, transformers 5 uses the older.
    where = "rope_scaling" if config.get("rope_scaling") else "rope_parameters"
    rope = config.get(where) or {}
    if not isinstance(rope, Mapping):
        raise SettingError(f"{read.where}.{where}", rope, "a mapping, or null")
    # one entry per kind of layer, or one for all
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
    kind = str(rope.get("rope_type") or rope.get("type") or "default")
    if (kind := _SAME_ROPE.get(kind, kind)) != "default":
        values["rope_scaling"] = _rope_scaling(read, where, kind, rope)
    return values


def _rope_scaling(read: Reader, where: str, kind: str, rope: Mapping[str, Any]) -> RopeScaling:
    def number(name: str, default: float) -> float:
        return read.number(f"{where}.{name}", rope.get(name), default)

    most = read.number("max_position_embeddings", read.config.get("max_position_embeddings"), 8192)
    name = "original_max_position_embeddings"
    # It overrides the other rotary settings.
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
        usual = stretch(factor, scales[0]) / stretch(factor, scales[1])
        usual = usual if all(scales) else stretch(factor, 1.0)
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


def _windows(read: Reader, family: Family, layers: int) -> dict[str, Any]:
    # -1 and 0 mean none.
    size = read.config.get("sliding_window")
    window = 0 if not size or size == -1 else read.whole("sliding_window")
    if not window or family.windowed is None:
        return {}
    has_switch = family.windowed is the_last or str(read.config["model_type"]).startswith("qwen")
    if has_switch and not read.flag("use_sliding_window", default=False):
        return {}
    kinds = read.config.get("layer_types") if family.names_layers else None
    if kinds is None:
        windowed = list(family.windowed(read, layers))
    elif not isinstance(kinds, list) or len(kinds) != layers:
        raise SettingError(f"{read.where}.layer_types", kinds, f"a list of {layers} names")
    else:
        windowed = [i for i, kind in enumerate(kinds) if kind == "sliding_attention"]
    if len(windowed) == layers:
        return {"sliding_window": window}
    if not windowed:
        return {}
    return {
        "partial_window": window,
        "partial_window_layers": len(windowed),
        "window_layers": tuple(windowed),
    }
