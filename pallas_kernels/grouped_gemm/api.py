"""`grouped_gemm`: checks its arguments; `gemm.api` does the rest."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from pallas_kernels.arguments import (
    Choice,
    Number,
    check_activations,
    check_cluster,
    resolve_backend,
)
from pallas_kernels.gemm.api import multiply
from pallas_kernels.gemm.config import Config
from pallas_kernels.gemm.specs import PACK_MULTIPLE, Gemm, WLayout
from pallas_kernels.hopper import INPUT_DTYPES, expect
from pallas_kernels.host_memory import HostArray
from pallas_kernels.quantized_gemm import QuantizedWeights
from pallas_kernels.quantized_gemm.api import describe
from pallas_kernels.quantized_gemm.weights import check_weights

_LAYOUTS = ("kn", "nk")


def grouped_gemm(
    x: Any,
    w: Any,
    group_sizes: Any,
    *,
    alpha: Number | None = None,
    sm_split: Number | None = None,
    layer: Number | None = None,
    cluster: int | None = None,
    sm_limit: Number | None = None,
    out_dtype: Any = None,
    w_layout: WLayout = "kn",
    config: Config | None = None,
    backend: Choice = "auto",
) -> jax.Array:
    """Multiply each expert's rows by its weights, which stay in host memory.

    x is sorted by expert, without padding; run-time values as for `hybrid_gemm`; traced sizes are
    clamped, groups cut off at row T.

    Args:
      x: bf16 or f16 [T, K], in device memory; T from 1.
      w: of the same dtype, [E, K, N] or [E, N, K] (`w_layout`), or a stack [L, E, ...]; `HostArray`
        or jax array, K and N multiples of 64; or `quantized_gemm.QuantizedWeights`, with any K and
        N.
      group_sizes: integers [E], of sum at most T; further rows' output is zero.
      alpha: share of columns for SymGEMM, in [0, 1]; None: the best for even routing; 1 without
        AsymGEMM.
      sm_split: SMs for SymGEMM, as in `hybrid_gemm`.
      layer: index into a stack, in [0, L); None: a single layer.
      cluster: CTAs along the rows that share a W tile: 1, 2, 4 or 8; None: chosen.
      out_dtype: dtype of x (default) or float32.
      w_layout: "kn" for W[E, K, N], "nk" for W[E, N, K]; not for quantised weights.
      config: tiles and grid instead of `gemm.choose`, with `cluster`.

    Returns:
      [T, N]: within `numerics.gemm_error_bound`, or `quantized_gemm.product_error_bound`. Bitwise
      repeatable; at alpha = 1 rows do not depend on other groups' sizes.

    Raises:
      ValueError: as `hybrid_gemm`.
      KernelUnavailable: as `hybrid_gemm`.
      NotImplementedError: as `hybrid_gemm`.
    """
    chosen = resolve_backend(backend)
    check_cluster(cluster)
    expect(w_layout in _LAYOUTS, "w_layout", w_layout, "'kn' for W[E, K, N] or 'nk' for W[E, N, K]")
    more: dict[str, Any] = {}
    if isinstance(w, QuantizedWeights):
        arrays = check_weights(w, stack_axes=2)
        data, k, columns = arrays["data"], w.k, w.n
        if data.ndim < 3:
            raise ValueError(
                f"w.data of shape {tuple(data.shape)}: expected experts [E, ...] or a stack "
                "[L, E, ...]"
            )
        more = {"scales": arrays["scales"], "offsets": arrays.get("offsets")}
        t, out = check_activations(x, k, out_dtype, rows="T")
    else:
        data, k, columns = _weights(w, w_layout)
        t, out = check_activations(x, k, out_dtype, w_dtype=data.dtype, rows="T")
    sizes: dict[str, Any] = {
        "m": t,
        "experts": data.shape[-3],
        "layers": data.shape[0] if data.ndim == 4 else None,
    }
    dtype = str(x.dtype)
    if isinstance(w, QuantizedWeights):
        gemm = describe(w, arrays, dtype=dtype, out_dtype=out, **sizes)
    else:
        gemm = Gemm(k=k, n=columns, dtype=dtype, out_dtype=out, w_layout=w_layout, **sizes)
    return multiply(
        "grouped_gemm",
        gemm,
        x,
        data,
        columns=columns,
        alpha=alpha,
        sm_split=sm_split,
        sm_limit=sm_limit,
        layer=layer,
        cluster=cluster,
        config=config,
        backend=chosen,
        group_sizes=check_sizes(group_sizes, t=gemm.m, experts=data.shape[-3]),
        **more,
    )


def check_sizes(group_sizes: Any, *, t: int, experts: int) -> Any:
    """Return group sizes as int32, checked if concrete."""
    traced = isinstance(group_sizes, jax.core.Tracer)
    sizes = group_sizes if traced else np.asarray(group_sizes)
    if sizes.shape != (experts,):
        shape = "x".join(map(str, sizes.shape)) or "a scalar"
        raise ValueError(
            f"group_sizes of shape {shape}: expected one number for each of w's {experts} experts"
        )
    if sizes.dtype.kind not in "iu":
        raise ValueError(f"group_sizes of dtype {sizes.dtype}: expected integers")
    if not traced:
        lowest, total = int(sizes.min()), int(sizes.sum(dtype=np.int64))
        if lowest < 0:
            raise ValueError(f"group_sizes with {lowest}: expected numbers from 0 up")
        if total > t:
            raise ValueError(f"group_sizes with sum {total}: expected at most the {t} rows of x")
    return sizes.astype(np.int32)


def _weights(w: Any, w_layout: str) -> tuple[Any, int, int]:
    data = w.data if isinstance(w, HostArray) else w
    if not isinstance(data, jax.Array | np.ndarray):
        raise ValueError(
            f"w of type {type(data).__name__}: expected an array, HostArray or QuantizedWeights"
        )
    shape = "x".join(map(str, data.shape))
    if data.ndim not in (3, 4) or 0 in data.shape:
        raise ValueError(
            f"w of shape {shape}: expected experts [E, ...] or a stack [L, E, ...], none empty"
        )
    if str(data.dtype) not in INPUT_DTYPES:
        raise ValueError(f"w of dtype {data.dtype}: expected one of {', '.join(INPUT_DTYPES)}")
    k, n = data.shape[-2:] if w_layout == "kn" else data.shape[-2:][::-1]
    for name, size in (("K", k), ("N", n)):
        if size % PACK_MULTIPLE:
            raise ValueError(
                f"w of shape {shape} with {name}={size}: expected a multiple of {PACK_MULTIPLE}; "
                "add zeros once, when the weights are loaded"
            )
    return data, int(k), int(n)
