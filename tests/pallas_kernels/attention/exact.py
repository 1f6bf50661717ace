"""Error bounds of correct attention against the exact result: derived, elementwise, never tuned."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
from jaxtyping import Bool, Float
from numpy.typing import DTypeLike

_EPS = float(np.finfo(np.float32).eps)
_SMALLEST_BLOCK = 64  # keys: no implementation here takes smaller ones


@dataclass(frozen=True, slots=True, kw_only=True)
class Exact:
    """Result in float64, with the error bound of a correct one."""

    out: Float[np.ndarray, "*r d"]
    bound: Float[np.ndarray, "*r d"]

    def worst(self, out: Any) -> float:
        """Return the largest error in units of its bound: at most 1 for a correct result.

        NaN counts as infinitely wrong.
        """
        error = abs(np.asarray(out, np.float64) - self.out)
        return float(np.where(np.isfinite(error), error / self.bound, np.inf).max())


def visible_keys(
    queries: int, keys: int, *, causal: bool, window: int | None, q_offset: int, kv_length: int
) -> Bool[np.ndarray, "t s"]:
    """Return the mask of keys that each query of one row sees (see `prefill_attention`)."""
    position = np.arange(queries)[:, None] + q_offset
    key = np.arange(keys)[None]
    seen = np.broadcast_to(key < kv_length, (queries, keys))
    if causal:
        seen = seen & (key <= position)
    if window is not None:
        seen = seen & (key > position - window)
    return seen


def exact_attention(
    q: Float[np.ndarray, "b t hq d"], k: Float[np.ndarray, "b s hkv d"],
    v: Float[np.ndarray, "b s hkv d"], seen: Bool[np.ndarray, "b t s"], *, scale: float,
    out_dtype: DTypeLike, merges: int = 0,
) -> Exact:  # fmt: skip
    """Compute in float64 and bound each element's error.

    Args:
      q: queries as stored.
      k: keys; unseen ones may be NaN.
      v: values; unseen ones may be NaN.
      seen: mask of the keys that each query sees.
      scale: factor of the scores.
      out_dtype: type of the output.
      merges: number of parts that are merged into the result.

    One row: scores s_j = scale (q . k_j) over n visible keys, M = max s, A = max scale (|q| .
    |k_j|), l = sum exp(s_j - M) >= 1, p_j = exp(s_j - M) / l, out = sum p_j v_j. `eps` is that of
    float32, d the head size, b the number of key blocks (each merge of parts counts as one).

    1. Products of 16-bit inputs are exact in float32, their sum errs by d eps A at most
       (`pallas_kernels.numerics`, steps 1 and 2; float32 inputs add one rounding, hence d + 1).
       Factor, product and difference in the exponent round a few times more, each at most eps (|s|
       + |M|) <= 2 eps A; the factors exp(m_old - m_new) of b blocks telescope to 2 eps A. exp2 of
       the hardware and XLA's exp err by at most 2 eps each, once for the weight and once a block.
       So each weight is off by a factor of at most exp(E), E = eps ((d + 12) A + 2 b + 4), whatever
       M was used: it cancels between numerator and sum.
    2. Weights are rounded to the type of v before they meet V: half an eps(type) each, and what is
       smaller than a normal number is off by one subnormal at most. A weight is relative to the
       largest one seen so far, so that costs subnormal(type) sum |v_j| exp(E) / l in all.
    3. Numerator and sum are accumulated in float32 over n terms and b rescalings, in any order: (n
       + 2 b) eps each. The division and its product add 4 eps.
    4. Factors 1 + x are at most exp(x), so with G = exp(2 E + eps(type) / 2 + 2 (n + 2 b + 2) eps)
       - 1 the row is within G sum p_j |v_j| plus step 2, then rounded once to the output type.
    """
    group = q.shape[2] // k.shape[2]
    cut = seen.any(axis=1)[..., None, None]
    k64, v64 = (np.repeat(np.where(cut, a, 0).astype(np.float64), group, axis=2) for a in (k, v))
    q64 = np.asarray(q, np.float64)
    mask = seen[:, :, None]  # [b, t, 1, s]
    scores = np.where(mask, scale * np.einsum("bthd,bshd->bths", q64, k64), -np.inf)
    sizes = np.where(mask, scale * np.einsum("bthd,bshd->bths", abs(q64), abs(k64)), 0.0)
    largest = sizes.max(axis=-1)
    some = seen.any(axis=-1)[:, :, None]
    top = np.where(some, scores.max(axis=-1), 0.0)
    weights = np.exp(scores - top[..., None])
    total = np.where(some, weights.sum(axis=-1), 1.0)
    weights = weights / total[..., None]
    out = np.einsum("bths,bshd->bthd", weights, v64)

    terms = seen.sum(axis=-1)[:, :, None]
    blocks = k.shape[1] / _SMALLEST_BLOCK + 1 + merges
    weight_eps, weight_small = _spacing(v.dtype)
    out_eps, out_small = _spacing(out_dtype)
    error = _EPS * ((q.shape[3] + 12) * largest + 2 * blocks + 4)
    gain = np.expm1(2 * error + weight_eps / 2 + 2 * (terms + 2 * blocks + 2) * _EPS)
    spread = np.einsum("bths,bshd->bthd", weights, abs(v64))
    lost = np.einsum("bths,bshd->bthd", np.broadcast_to(mask, scores.shape) * 1.0, abs(v64))
    before = gain[..., None] * spread + (weight_small * np.exp(error) / total)[..., None] * lost
    return Exact(out=out, bound=(1 + out_eps) * before + out_eps * abs(out) + out_small)


def _spacing(dtype: DTypeLike) -> tuple[float, float]:
    """Return (eps, smallest subnormal)."""
    info = ml_dtypes.finfo(dtype)  # type: ignore[no-untyped-call]
    return float(info.eps), float(info.smallest_subnormal)
