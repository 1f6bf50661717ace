"""Error bounds of a correct GEMM."""

from __future__ import annotations

from dataclasses import dataclass

import ml_dtypes
import numpy as np
from numpy.typing import DTypeLike

from pallas_kernels.array_types import Float

_MAX_TERMS = 1 << 22  # k eps(f32) reaches 1/2: the first-order bound of step 2 ends there


@dataclass(frozen=True, slots=True, kw_only=True)
class GemmCheck:
    """A product's element with the largest error in bounds."""

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
    """Return a bound of |out - ref| for products accumulated in float32, stored in `out_dtype`.

    With O = X W of k products, S = |X| |W|, ref in float64 and eps(t) the spacing of type t at 1:

    1. A product of two bfloat16 or float16 inputs is exact in float32; one of float32 inputs is
       rounded once.
    2. Sums of k products in float32, in any order, err by at most (k - 1) u S, u being eps(f32) as
       tensor cores may cut; with the product of float32 inputs k eps(f32) S.
    3. The output is rounded: eps(out) |ref|.
    4. Below the normal numbers the error is one smallest subnormal of the output type.

    Partial sums in a two-byte type, and overflow, are outside the bound.

    Args:
      x: as the kernel read them (bfloat16, float16 or float32), like w.
      w: like x.
      out_dtype: of the output.

    Returns:
      Each element's bound, float64.

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
    """Compare a computed product with its bound; return the worst element, NaN and inf first."""
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
