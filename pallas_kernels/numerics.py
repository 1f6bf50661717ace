"""How far a correct GEMM may be from the exact product: derived, elementwise, never tuned.

Write O = X W with k products in each output, S = |X| |W|, ref = the float64 product of the stored
inputs, and eps(t) the distance from 1 to the next number of type t.

1. A product of two inputs with p significant bits each has 2p bits. bfloat16 (8) and float16 (11)
   fit in float32 (24), so such a product is exact; one of float32 inputs is rounded once more.
2. Adding k products in float32, in any order and any grouping, errs by at most (k - 1) u S to first
   order, u being the error of one addition. Tensor cores may cut instead of round, so u is eps(f32)
   and not half of it. With the rounded product of float32 inputs: k eps(f32) S in both cases.
3. Storing the result rounds it to the output type: eps(out) |ref| (round to nearest needs half).
4. A dataflow that adds P partial sums into an output of the output type rounds each partial sum and
   each running sum. Every one of them is at most S in magnitude, P roundings of partial sums add
   up to half an eps(out) S and P - 1 additions to half of (P - 1) eps(out) S: together at most
   P eps(out) S, whatever the order in which they arrive.
5. Below the normal numbers the spacing is absolute: one smallest subnormal of the output type for
   each time it is stored.

Values must fit the output type: an overflow is outside every bound here. A product that rounds to
nearest everywhere uses half of the bound.
"""

from __future__ import annotations

from dataclasses import dataclass

import ml_dtypes
import numpy as np
from jaxtyping import Float
from numpy.typing import DTypeLike

_MAX_TERMS = 1 << 22  # k eps(f32) reaches 1/2: the first-order bound of step 2 ends there


@dataclass(frozen=True, slots=True, kw_only=True)
class GemmCheck:
    """The element of a product that came closest to its bound, or passed it."""

    worst_ratio: float  # error / bound; at most 1 for a correct product
    row: int
    column: int
    got: float
    expected: float
    bound: float

    @property
    def ok(self) -> bool:
        """Whether every element is within its bound."""
        return self.worst_ratio <= 1.0


def gemm_reference(
    x: Float[np.ndarray, "m k"], w: Float[np.ndarray, "k n"]
) -> Float[np.ndarray, "m n"]:
    """Multiply the stored values in float64."""
    return np.asarray(x, np.float64) @ np.asarray(w, np.float64)


def gemm_error_bound(
    x: Float[np.ndarray, "m k"],
    w: Float[np.ndarray, "k n"],
    out_dtype: DTypeLike,
    *,
    partial_sums: int = 1,
) -> Float[np.ndarray, "m n"]:
    """Bound |out - ref| for products accumulated in float32 and stored in `out_dtype`.

    Args:
      x: activations as the kernel read them (bfloat16, float16 or float32).
      w: weights as the kernel read them.
      out_dtype: type of the output, and of the partial sums where there are several.
      partial_sums: how many partial sums are added in `out_dtype` (the number of K slices of an
        AsymGEMM); 1 where the whole of K is accumulated in float32 and stored once.

    Returns:
      The bound of each element, float64.

    Raises:
      ValueError: `partial_sums` is not in [1, k], or k is so large that float32 sums have no bound.

    Source: the module's docstring; Higham, Accuracy and Stability of Numerical Algorithms, ch. 3-4.
    """
    k = x.shape[1]
    if not 1 <= partial_sums <= max(k, 1):
        raise ValueError(f"partial_sums={partial_sums}: expected a number from 1 to k = {k}")
    if k > _MAX_TERMS:
        raise ValueError(f"k={k}: expected at most {_MAX_TERMS} terms in a float32 sum")
    eps_out, smallest_out = _spacing(out_dtype)
    eps_sum, _ = _spacing(np.float32)
    magnitude = gemm_reference(np.abs(x), np.abs(w))
    bound = k * eps_sum * magnitude + partial_sums * smallest_out
    if partial_sums == 1:
        stored = eps_out * np.abs(gemm_reference(x, w))
    else:
        stored = partial_sums * eps_out * magnitude
    return np.asarray(bound + stored, np.float64)


def check_gemm(
    out: Float[np.ndarray, "m n"],
    x: Float[np.ndarray, "m k"],
    w: Float[np.ndarray, "k n"],
    *,
    partial_sums: int = 1,
) -> GemmCheck:
    """Compare a computed product with its bound and return the worst element.

    NaN and infinities count as infinitely wrong. `out` must have at least one element.
    """
    reference = gemm_reference(x, w)
    bound = gemm_error_bound(x, w, out.dtype, partial_sums=partial_sums)
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
    """Return (eps, smallest subnormal) of a floating type, bfloat16 included."""
    info = ml_dtypes.finfo(dtype)  # type: ignore[no-untyped-call]
    return float(info.eps), float(info.smallest_subnormal)
