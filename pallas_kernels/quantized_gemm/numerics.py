"""Error bounds of quantisation."""

from __future__ import annotations

import ml_dtypes
import numpy as np
from numpy.typing import DTypeLike

from pallas_kernels.array_types import Float
from pallas_kernels.numerics import gemm_error_bound, gemm_reference
from pallas_kernels.quantized_gemm.quantization import dequantize
from pallas_kernels.quantized_gemm.rows import LARGEST
from pallas_kernels.quantized_gemm.weights import QuantizedWeights

_EPS = float(np.finfo(np.float32).eps)


def quantization_error_bound(qw: QuantizedWeights) -> Float[np.ndarray, "*stack k n"]:
    """Return a bound of |w - dequantize(qw)| for the float32 weights w, as [.., K, N].

    Integers: half a step, s / 2; e4m3: 1/16 of the stored number, or s 2**-10 below its normal
    numbers; and two roundings to float32.
    """
    scales = np.asarray(qw.scales, np.float64)
    group = qw.data.shape[-1] * (2 if qw.kind == "int4" else 1) // scales.shape[-2]
    step = np.repeat(scales, group, axis=-2)[..., : qw.k, : qw.n]
    rounded = 2 * _EPS * step * LARGEST[qw.kind]
    if qw.kind != "float8_e4m3fn":
        return np.asarray(step / 2 + rounded)
    stored = np.abs(dequantize(qw).astype(np.float64))
    return np.asarray(np.maximum(stored / 16, step * 2.0**-10) + rounded)


def product_error_bound(
    x: Float[np.ndarray, "m k"],
    w: Float[np.ndarray, "k n"],
    out_dtype: DTypeLike,
    *,
    weights_scaled: bool = False,
    magnitudes: Float[np.ndarray, "k n"] | None = None,
) -> Float[np.ndarray, "m n"]:
    """Return a bound of |out - X W| for dequantised weights W = s q + o, taken as exact.

    Without offsets a product meets at most g + G - 1 <= k roundings in float32: g weights a piece,
    G pieces.

    With offsets at most g + 2 G <= k + 3, and sums of |X| (|s q| + |o|).

    The reference's float32 weights are within it.

    Weights scaled before the product add eps / 2 of float32 and of X's type for |X| |W|.

    Args:
      w: dequantised weights, in float64.
      weights_scaled: `config.scales_weights`.
      magnitudes: `quantizing.magnitudes`; None without offsets.
    """
    bound = gemm_error_bound(x, w, out_dtype)
    if magnitudes is not None:
        product = gemm_reference(np.abs(x), np.abs(w))
        terms = x.shape[1] * (gemm_reference(np.abs(x), magnitudes) - product)
        more = _EPS * (terms + 3 * gemm_reference(np.abs(x), magnitudes))
        # the sum that is rounded to the output is off by as much
        bound = bound + more * (1 + float(_output_eps(out_dtype)))
    if not weights_scaled:
        return bound
    eps = float(ml_dtypes.finfo(x.dtype).eps)  # type: ignore[no-untyped-call]
    once = (eps / 2 + _EPS / 2) * (1 + eps) * gemm_reference(np.abs(x), np.abs(w))
    # the larger sums are rounded by as much more
    return np.asarray(once + bound * (1 + eps) + float(_output_eps(out_dtype)) * once)


def _output_eps(dtype: DTypeLike) -> float:
    return float(ml_dtypes.finfo(dtype).eps)  # type: ignore[no-untyped-call]
