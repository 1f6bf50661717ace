"""Mixture of experts: who computes what, and the sum of their answers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from c2c.models import ModelSpec
from c2c.transformer.activations import activate

__all__ = ["Routing", "mixture", "route"]

Experts = Callable[[str, jax.Array, jax.Array], jax.Array]
"""(name of the projection, rows by expert, group sizes) -> products."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True, slots=True, kw_only=True)
class Routing:
    """The experts of every token by falling weight, and their weights in float32."""

    experts: Any  # int32 [N, experts_per_token]
    weights: Any


def route(x: jax.Array, router: jax.Array, spec: ModelSpec) -> Routing:
    """Choose experts: softmax over all, then the largest, renormalised where the model says so.

    Args:
      x: normalised activations [N, hidden].
      router: [experts, hidden].
      spec: the model.
    """
    scores = lax.dot_general(
        x.astype(jnp.float32),
        router.astype(jnp.float32),
        (((1,), (1,)), ((), ())),
        precision=lax.Precision.HIGHEST,
    )
    weights, experts = lax.top_k(jax.nn.softmax(scores, axis=-1), spec.experts_per_token)
    if spec.norm_topk:
        weights = weights / weights.sum(axis=-1, keepdims=True)
    return Routing(experts=experts.astype(jnp.int32), weights=weights)


def mixture(
    x: jax.Array, routing: Routing, real: jax.Array, experts: Experts, spec: ModelSpec
) -> jax.Array:
    """Return the weighted sum of the chosen experts' gated blocks.

    Rows are sorted by expert, so that each expert is one group; what padding would choose is in no
    group, and is never fetched.

    Args:
      x: normalised activations [N, hidden].
      routing: of the same tokens.
      real: bool [N], False for padding.
      experts: multiplies groups of rows by experts' weights.
      spec: the model.
    """
    chosen = jnp.where(real[:, None], routing.experts, spec.experts).reshape(-1)
    order = jnp.argsort(chosen, stable=True)
    sizes = jnp.bincount(chosen, length=spec.experts).astype(jnp.int32)
    rows = x[order // spec.experts_per_token]
    gate, up = jnp.split(experts("experts_gate_up", rows, sizes), 2, axis=-1)
    out = experts("experts_down", activate(spec.activation, gate) * up, sizes)
    mine = out[jnp.argsort(order)].reshape(*routing.experts.shape, -1)
    weights = jnp.where(real[:, None], routing.weights, 0.0)
    return (mine.astype(jnp.float32) * weights[..., None]).sum(axis=1).astype(x.dtype)
