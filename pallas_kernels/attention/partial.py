"""Attention over a part of the keys."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp


@jax.tree_util.register_dataclass
@dataclass(frozen=True, slots=True, kw_only=True)
class Partial:
    """Attention result over a part of the keys. Rows that saw no key have out 0 and lse -inf."""

    out: Any  # float32 [..., head_dim], normalised over the keys of this part
    lse: Any  # float32 [...], natural logarithm


def merge_stacked(out: jax.Array, lse: jax.Array) -> Partial:
    """Merge parts along the first axis.

        lse(K) = log sum_{j in K} exp(s_j)        out(K) = sum_{j in K} exp(s_j - lse(K)) v_j

        lse(A | B) = L        out(A | B) = exp(lse(A) - L) out(A) + exp(lse(B) - L) out(B)

    A part without keys has lse = -inf and weight 0.
    """
    if out.shape[0] == 1:
        return Partial(out=out[0], lse=lse[0])
    top = lse.max(axis=0)
    base = jnp.where(top == -jnp.inf, 0.0, top)  # -inf - -inf is NaN
    weights = jnp.exp(lse - base)[..., None]
    total = weights.sum(axis=0)
    divisor = jnp.where(total > 0, total, 1.0)
    merged = jnp.where(weights > 0, weights * out, 0.0).sum(axis=0) / divisor
    log_sum = jnp.where(total > 0, base[..., None] + jnp.log(divisor), -jnp.inf)
    return Partial(out=merged, lse=log_sum[..., 0])
