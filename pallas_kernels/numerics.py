"""Error bounds of a correct GEMM against the exact product: derived, elementwise, never tuned."""

from __future__ import annotations

from dataclasses import dataclass

import ml_dtypes
import numpy as np
from numpy.typing import DTypeLike

from pallas_kernels.array_types import Float

_MAX_TERMS = 1 << 22  # k eps(f32) reaches 1/2: the first-order bound of step 2 ends there


@dataclass(frozen=True, slots=True, kw_only=True)
class GemmCheck:
    """Element of a product with the largest error in units of its bound."""

    worst_ratio: float  # error / bound; at most 1 for a correct product
    row: int
    column: int
    got: float
    expected: float
    bound: float

    @property
    def ok(self) -> bool:
        """True if every element is within its bound."""
        return self.worst_ratio <= 1.0


def gemm_reference(
    x: Float[np.ndarray, "m k"], w: Float[np.ndarray, "k n"]
) -> Float[np.ndarray, "m n"]:
    """Multiply the stored values in float64."""
    return np.asarray(x, np.float64) @ np.asarray(w, np.float64)


def gemm_error_bound(
    x: Float[np.ndarray, "m k"], w: Float[np.ndarray, "k n"], out_dtype: DTypeLike
) -> Float[np.ndarray, "m n"]:
    """Bound |out - ref| for products accumulated in float32 and stored in `out_dtype`.

    Write O = X W with k products in each output, S = |X| |W|, ref = the float64 product of the
    stored inputs, and eps(t) the distance from 1 to the next number of type t.

    1. A product of two inputs with p significant bits each has 2p bits. bfloat16 (8) and float16
       (11) fit in float32 (24), so such a product is exact; one of float32 inputs is rounded once
       more.
    2. Adding k products in float32, in any order and any grouping, errs by at most (k - 1) u S to
       first order, u being the error of one addition. Tensor cores may cut instead of round, so u
       is eps(f32) and not half of it. With the rounded product of float32 inputs: k eps(f32) S in
       both cases.
    3. Storing the result rounds it to the output type: eps(out) |ref| (round to nearest needs
       half).
    4. Below the normal numbers the spacing is absolute: one smallest subnormal of the output type.

    A dataflow that adds partial sums in device memory is within the bound if it adds them in
    float32 and rounds once; sums that live in a two-byte type are not. An overflow of the output
    type is outside the bound.

    Args:
      x: activations as the kernel read them (bfloat16, float16 or float32).
      w: weights as the kernel read them.
      out_dtype: type of the output.

    Returns:
      The bound of each element, float64.

    Raises:
      ValueError: k is too large for a bound of float32 sums.

    Source: Higham, Accuracy and Stability of Numerical Algorithms, ch. 3-4.
    """
    k = x.shape[1]
    if k > _MAX_TERMS:
        raise ValueError(f"k={k}: expected at most {_MAX_TERMS} terms in a float32 sum")
    eps_out, smallest_out = _spacing(out_dtype)
    eps_sum, _ = _spacing(np.float32)
    magnitude = gemm_reference(np.abs(x), np.abs(w))
    stored = eps_out * np.abs(gemm_reference(x, w)) + smallest_out
    return np.asarray(k * eps_sum * magnitude + stored, np.float64)


def check_gemm(
    out: Float[np.ndarray, "m n"], x: Float[np.ndarray, "m k"], w: Float[np.ndarray, "k n"]
) -> GemmCheck:
    """Compare a computed product with its bound and return the worst element.

    NaN and infinities count as infinitely wrong. `out` must have at least one element.
    """
    reference = gemm_reference(x, w)
    bound = gemm_error_bound(x, w, out.dtype)
    error = np.abs(np.asarray(out, np.float64) - reference)
    ratio = np.where(np.isfinite(error), error / bound, np.inf)
    row, column = (int(i) for i in np.unravel_index(np.argmax(ratio), ratio.shape))
    return GemmCheck(
        worst_ratio=float(ratio[row, column]),
        row=row,
        column=column,
        got=float(out[row, column]),
        expected=float(reference[row, column]),
        bound=float(bound[row, column]),
    )


def _spacing(dtype: DTypeLike) -> tuple[float, float]:
    info = ml_dtypes.finfo(dtype)  # type: ignore[no-untyped-call]
    return float(info.eps), float(info.smallest_subnormal)
