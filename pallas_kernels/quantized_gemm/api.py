"""`quantized_gemm`: checks its arguments; `gemm.api` does the rest."""

from __future__ import annotations

from typing import Any

import jax

from pallas_kernels.arguments import (
    Choice,
    Number,
    check_activations,
    check_cluster,
    resolve_backend,
)
from pallas_kernels.gemm.api import multiply
from pallas_kernels.gemm.config import Config
from pallas_kernels.gemm.specs import N_MULTIPLE, ROW_MULTIPLE, Gemm, Quantised
from pallas_kernels.integer_math import round_up
from pallas_kernels.quantized_gemm.weights import QuantizedWeights, check_weights, padded_k


def quantized_gemm(
    x: Any,
    w: QuantizedWeights,
    *,
    alpha: Number | None = None,
    sm_split: Number | None = None,
    layer: Number | None = None,
    cluster: int | None = None,
    sm_limit: Number | None = None,
    out_dtype: Any = None,
    config: Config | None = None,
    backend: Choice = "auto",
) -> jax.Array:
    """Multiply activations in device memory by quantised weights that stay in host memory.

    As `hybrid_gemm`, without staging; weights are converted in registers. K and N are any numbers.

    Args:
      x: bf16 or f16 [M, K], in device memory.
      w: result of `quantize` or `from_integers`, [K, N] or a stack; in `pinned_host` or device
        memory.
      alpha: share of columns for SymGEMM, in [0, 1]; None: the best predicted; 1 without AsymGEMM.
      layer: index into a stack, in [0, L); None: a matrix.
      out_dtype: dtype of x (default) or float32.
      config: tiles and grid instead of `choose`, with `cluster`.

    Returns:
      x @ dequantised w as [M, N], within `numerics.product_error_bound`. Bitwise repeatable.

    Raises:
      ValueError: as `hybrid_gemm`.
      KernelUnavailable: as `hybrid_gemm`.
      NotImplementedError: as `hybrid_gemm`.
    """
    chosen = resolve_backend(backend)
    arrays = check_weights(w, stack_axes=1)
    rows, out = check_activations(x, w.k, out_dtype)
    check_cluster(cluster)
    data = arrays["data"]
    gemm = describe(
        w,
        arrays,
        m=round_up(rows, ROW_MULTIPLE),
        dtype=str(x.dtype),
        out_dtype=out,
        layers=data.shape[0] if data.ndim == 3 else None,
    )
    return multiply(
        "quantized_gemm",
        gemm,
        x,
        data,
        scales=arrays["scales"],
        offsets=arrays.get("offsets"),
        columns=w.n,
        alpha=alpha,
        sm_split=sm_split,
        sm_limit=sm_limit,
        layer=layer,
        cluster=cluster,
        config=config,
        backend=chosen,
    )


def describe(
    w: QuantizedWeights, arrays: dict[str, Any], *, dtype: str, out_dtype: str, **sizes: Any
) -> Gemm:
    """Return a product's static description.

    Args:
      **sizes: m, layers, experts.
    """
    offsets = arrays.get("offsets")
    weights = Quantised(
        kind=w.kind,
        group=w.group,
        scale_dtype=str(arrays["scales"].dtype),
        offset_dtype=None if offsets is None else str(offsets.dtype),
    )
    return Gemm(
        k=padded_k(w.k, w.group),
        n=round_up(w.n, N_MULTIPLE),
        dtype=dtype,
        out_dtype=out_dtype,
        w_layout="nk",
        quantised=weights,
        **sizes,
    )
