"""Precisions by name."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from c2c.errors import SettingError, check_keys, unknown_name
from c2c.models.quantisation import quantised
from c2c.models.spec import ModelSpec

__all__ = ["PRECISIONS", "at_precision"]

# NVIDIA's checkpoints keep the projections to and from a latent vector.
_LATENT = [f"*self_attn.{name}_proj*" for name in ("q_a", "q_b", "kv_a", "kv_b")]
_CACHE = {"kv_cache_quant_algo": "FP8"}
_INT8 = {"num_bits": 8, "type": "int", "strategy": "channel", "symmetric": True}

# The quantisation of a config.json, as usual checkpoints of each name have it.
PRECISIONS: Final[Mapping[str, Mapping[str, Any]]] = {
    "bf16": {},
    "fp8": {"quant_method": "modelopt", "quant_algo": "FP8", **_CACHE},
    "fp8_block": {"quant_method": "fp8", "weight_block_size": [128, 128]},
    "nvfp4": {"quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 16, **_CACHE,
              "exclude_modules": _LATENT},
    "mxfp4": {"quant_method": "mxfp4"},
    "int8": {"quant_method": "compressed-tensors", "format": "int-quantized",
             "config_groups": {"group_0": {"targets": ["Linear"], "weights": _INT8}}},
    "int4": {"quant_method": "awq", "bits": 4, "group_size": 128},
}  # fmt: skip
_CACHED: Final = {"bf16": 0, "fp8": 1, "int8": 1}  # bytes of a value; 0: those of the model's type
_PARTS = ("weights", "compute", "cache")


def at_precision(spec: ModelSpec, value: object, where: str = "precision") -> ModelSpec:
    """Return a model at a precision.

    Args:
      value: of `PRECISIONS`, with its usual cache; or a mapping with some of `weights` (such a
        name), `compute` ("bf16", or the weights' kernels, which the chip must have) and `cache`
        ("bf16", "fp8" or "int8").

    Raises:
      SettingError: an unknown name or key, MXFP4 weights without experts, or `compute` unlike the
        weights.
    """
    parts = {"weights": value} if isinstance(value, str) else value
    if not isinstance(parts, Mapping) or not parts:
        raise SettingError(where, value, f"a name, or a mapping with {', '.join(_PARTS)}")
    check_keys(parts, _PARTS, where)
    if "weights" in parts:
        name, field = parts["weights"], where if isinstance(value, str) else f"{where}.weights"
        if not isinstance(name, str) or name not in PRECISIONS:
            raise unknown_name(field, name, PRECISIONS)
        if name == "mxfp4" and not spec.experts:
            raise SettingError(field, name, f"another precision: {spec.name} has no experts")
        plain = replace(spec, weights=None, kv_dtype_bytes=0)
        spec = quantised(plain, PRECISIONS[name], field) if PRECISIONS[name] else plain
    if "cache" in parts:
        if parts["cache"] not in _CACHED:
            raise unknown_name(f"{where}.cache", parts["cache"], _CACHED)
        spec = replace(spec, kv_dtype_bytes=_CACHED[parts["cache"]])
    if "compute" not in parts:
        return spec
    kernel = "bf16" if spec.weights is None else spec.weights.kernel
    if parts["compute"] not in ("bf16", kernel):
        allowed = " or ".join(dict.fromkeys(("bf16", kernel)))
        raise SettingError(f"{where}.compute", parts["compute"], f"{allowed}, as the weights are")
    if spec.weights is None:
        return spec
    is_own = parts["compute"] == kernel != "bf16"
    form = replace(spec.weights, kernel=parts["compute"], is_demanded=is_own)
    return replace(spec, weights=form)
