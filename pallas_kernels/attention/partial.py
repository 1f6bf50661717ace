"""Attention over a part of the keys, and the exact merge of parts.

Over a set of keys K, with scores s_j = scale * (q . k_j):

    lse(K) = log sum_{j in K} exp(s_j)        out(K) = sum_{j in K} exp(s_j - lse(K)) v_j

For disjoint parts A and B, with L = log(exp(lse(A)) + exp(lse(B))):

    lse(A | B) = L        out(A | B) = exp(lse(A) - L) out(A) + exp(lse(B) - L) out(B)

This is an identity, not an approximation: parts may be computed by different kernels, models or
GPUs and merged in any order. A part without keys has lse = -inf and weight 0; merging it in
changes no bit.
"""

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

    @staticmethod
    def empty(*shape: int) -> Partial:
        """Return the part without keys: the neutral element of `merge_partial`.

        Args:
          shape: shape of `out`, head dimension last.

        >>> float(Partial.empty(1, 2, 4).lse[0, 0])
        -inf
        """
        return Partial(
            out=jnp.zeros(shape, jnp.float32), lse=jnp.full(shape[:-1], -jnp.inf, jnp.float32)
        )


def merge_partial(*partials: Partial) -> Partial:
    """Merge results over disjoint sets of keys into the result over all of them.

    Args:
      partials: at least one, all of one shape.

    Returns:
      The part over the union, within `numerics.merge_error_bound` of the exact merge. Merging an
      empty part leaves the other's bits as they are.

    Raises:
      ValueError: `partials` is empty, or shapes or types differ.
    """
    if not partials:
        raise ValueError("partials=(): expected at least one")
    shape = partials[0].out.shape
    for index, part in enumerate(partials):
        if part.out.shape != shape or part.lse.shape != shape[:-1]:
            raise ValueError(
                f"partials[{index}] of shapes {part.out.shape} and {part.lse.shape}: expected "
                f"{shape} and {shape[:-1]} as in the first"
            )
        for name, array in (("out", part.out), ("lse", part.lse)):
            if array.dtype != jnp.float32:
                raise ValueError(
                    f"partials[{index}].{name} of dtype {array.dtype}: expected float32"
                )
    if len(partials) == 1:
        return partials[0]
    top = partials[0].lse
    for part in partials[1:]:
        top = jnp.maximum(top, part.lse)
    base = _finite(top)
    weights = [jnp.exp(part.lse - base) for part in partials]
    total = sum(weights[1:], weights[0])
    out = sum(
        (_weighted(w, part.out) for w, part in zip(weights[1:], partials[1:], strict=True)),
        _weighted(weights[0], partials[0].out),
    )
    return _normalised(out, total, base)


def merge_stacked(out: jax.Array, lse: jax.Array) -> Partial:
    """Merge parts along the first axis, the layout of the decode kernel's results."""
    if out.shape[0] == 1:
        return Partial(out=out[0], lse=lse[0])
    base = _finite(lse.max(axis=0))
    weights = jnp.exp(lse - base)
    return _normalised(_weighted(weights, out).sum(axis=0), weights.sum(axis=0), base)


def _finite(top: jax.Array) -> jax.Array:
    """Return the maximum to subtract; rows without any key subtract 0, as -inf would give NaN."""
    return jnp.where(top == -jnp.inf, 0.0, top)


def _weighted(weight: jax.Array, out: jax.Array) -> jax.Array:
    return jnp.where(weight[..., None] > 0, weight[..., None] * out, 0.0)


def _normalised(out: jax.Array, total: jax.Array, base: jax.Array) -> Partial:
    some = total > 0
    divisor = jnp.where(some, total, 1.0)
    lse = jnp.where(some, base + jnp.log(divisor), -jnp.inf)
    return Partial(out=out / divisor[..., None], lse=lse)
