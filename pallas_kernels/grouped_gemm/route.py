"""Routing around `grouped_gemm` in jax.numpy: sort by expert, dispatch, combine."""

from __future__ import annotations

import jax.numpy as jnp

from pallas_kernels.array_types import Array, Float, Int


def sort_by_expert(
    expert_ids: Int[Array, "t k"], experts: int
) -> tuple[Int[Array, " tk"], Int[Array, " e"]]:
    """Sort the (token, choice) pairs by expert, stably.

    Args:
      expert_ids: the k experts of each token. Numbers outside [0, experts) mean no expert
        (padding tokens); those pairs are last and in no group.
      experts: number of experts.

    Returns:
      order: pair `order[i]` is at position i; pair p is choice p % k of token p // k.
      group_sizes: int32, pairs of each expert.

    Raises:
      ValueError: `expert_ids` has no two dimensions, or `experts` is not above 0.
    """
    if expert_ids.ndim != 2:
        raise ValueError(f"expert_ids of shape {expert_ids.shape}: expected [tokens, choices]")
    if experts < 1:
        raise ValueError(f"experts={experts}: expected a number above 0")
    flat = expert_ids.reshape(-1)
    flat = jnp.where((flat >= 0) & (flat < experts), flat, experts)
    sizes = jnp.bincount(flat, length=experts + 1)[:experts]
    return jnp.argsort(flat, stable=True).astype(jnp.int32), sizes.astype(jnp.int32)


def dispatch(
    x: Float[Array, "t c"], order: Int[Array, " tk"], per_token: int
) -> Float[Array, "tk c"]:
    """Return the rows of x in the order of their experts, each token `per_token` times."""
    return x[order // per_token]


def combine(
    y: Float[Array, "tk n"], order: Int[Array, " tk"], weights: Float[Array, "t k"]
) -> Float[Array, "t n"]:
    """Undo `sort_by_expert` and add up the weighted outputs of each token's experts in float32.

    Args:
      y: outputs of the experts, in the order of `order`.
      order: order of `sort_by_expert`.
      weights: router weights of each token's choices.

    Returns:
      The sums in y's type.
    """
    place = jnp.zeros_like(order).at[order].set(jnp.arange(order.size, dtype=order.dtype))
    outputs = y[place].reshape(*weights.shape, y.shape[1])
    return jnp.einsum(
        "tkn,tk->tn", outputs, weights, preferred_element_type=jnp.float32, precision="highest"
    ).astype(y.dtype)
