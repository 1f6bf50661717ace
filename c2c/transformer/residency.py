"""Partly resident projections: shares for a budget of device memory, and their caches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp

from c2c.errors import SettingError
from c2c.transformer.linear import Hybrid
from c2c.transformer.params import Params
from pallas_kernels.arguments import resolve_backend
from pallas_kernels.gemm import Gemm, Machine, Operation, Resident, Share, best_shares
from pallas_kernels.gemm import present_machine as this_machine
from pallas_kernels.gemm.specs import ROW_MULTIPLE
from pallas_kernels.hybrid_gemm import PackedWeights, hybrid_gemm
from pallas_kernels.hybrid_gemm.packing import stored_sizes
from pallas_kernels.quantized_gemm import QuantizedWeights, quantized_gemm
from pallas_kernels.quantized_gemm.api import describe
from pallas_kernels.quantized_gemm.weights import arrays_of

__all__ = ["best_columns", "keep_resident"]


def best_columns(
    params: Params, budget_bytes: float, *, rows: int = ROW_MULTIPLE, machine: Machine | None = None
) -> Mapping[str, Share]:
    """Return the number of first columns of each projection to keep in device memory per layer.

    The numbers minimise the predicted step time (`pallas_kernels.gemm.best_shares`). Experts stay
    in host memory, since the active ones change from step to step.

    Args:
      params: parameters of a model, placed for `Hybrid`.
      budget_bytes: budget of device memory.
      rows: tokens of the steps to optimise; by default a decode step.
      machine: hardware rates; by default this device's.

    Raises:
      SettingError: the budget is negative.
    """
    if not budget_bytes >= 0:
        raise SettingError("resident.budget_bytes", budget_bytes, "a number from 0 up")
    gemms = {
        name: _gemm(w, rows, str(params.dtype))
        for name, w in params.projections.items()
        if not name.startswith("experts")
    }
    operations = [
        Operation(gemm=replace(gemm, layers=None), copies=gemm.layers or 1)
        for gemm in gemms.values()
    ]
    found = best_shares(operations, budget_bytes, machine or this_machine())
    return dict(zip(gemms, found, strict=True))


def keep_resident(linear: Hybrid, params: Params, shares: Mapping[str, Share]) -> Hybrid:
    """Return the strategy with the first columns of projections in device memory.

    Kernels fill the caches, one launch per layer. The used part is a run-time value:
    `Resident.columns` of each layer can be lowered later without compiling, and columns of a cache
    can be given to other layers.

    Args:
      linear: strategy for projections.
      params: parameters of the model.
      shares: columns by projection, as `best_columns` returns them.
    """
    kept = {
        name: _filled(params.projections[name], share.columns, str(params.dtype), linear)
        for name, share in shares.items()
        if share.columns
    }
    return replace(linear, resident=kept)


def _gemm(w: Any, rows: int, dtype: str) -> Gemm:
    """Return the GEMM of a projection, as its kernel computes it."""
    m = -(-rows // ROW_MULTIPLE) * ROW_MULTIPLE
    if isinstance(w, QuantizedWeights):
        arrays = arrays_of(w)
        stack = arrays["data"].shape[:-2]
        layers = int(stack[0]) if stack else None
        return describe(w, arrays, m=m, dtype=dtype, out_dtype=dtype, layers=layers)
    if not isinstance(w, PackedWeights):
        raise SettingError("linear", type(w).__name__, "weights placed for the hybrid strategy")
    k, n, layers = stored_sizes(w.data, w.w_layout)
    return Gemm(m=m, k=k, n=n, dtype=dtype, out_dtype=dtype, layers=layers, w_layout=w.w_layout)


def _filled(w: Any, columns: int, dtype: str, linear: Hybrid) -> Resident:
    """Return a cache of the first columns of every layer, filled by kernel launches."""
    gemm = _gemm(w, ROW_MULTIPLE, dtype)
    layers = gemm.layers or 1
    described = replace(gemm, resident=layers * columns)
    cache = jax.new_ref(jnp.zeros(described.resident_shape, jnp.dtype(described.w_dtype)))
    backend = resolve_backend(linear.backend)
    k = w.k
    x = jnp.zeros((ROW_MULTIPLE, k), jnp.dtype(dtype))
    for layer in range(layers):
        begin = layer * columns
        options: dict[str, Any] = {
            "layer": None if gemm.layers is None else layer,
            "cluster": linear.cluster,
            "sm_limit": linear.sm_limit,
            "backend": backend,
            "resident": Resident(cache=cache, columns=0, begin=begin, fill=columns),
        }
        if isinstance(w, QuantizedWeights):
            quantized_gemm(x, w, **options)
        else:
            hybrid_gemm(x, w, None, **options)
    here, begins = jnp.int32(columns), jnp.int32(0)
    if gemm.layers is not None:
        here = jnp.full(layers, columns, jnp.int32)
        begins = jnp.arange(layers, dtype=jnp.int32) * columns
    return Resident(cache=jax.freeze(cache), columns=here, begin=begins)
