"""Mixture of experts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from c2c.models import ModelSpec
from c2c.transformer.layers.activations import activate

__all__ = ["Routing", "mixture", "route"]

Experts = Callable[[str, jax.Array, jax.Array], jax.Array]
"""(name of the projection, rows by expert, group sizes) -> products."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True, slots=True, kw_only=True)
class Routing:
    """Experts of tokens by falling weight, weights in float32."""

    experts: Any  # int32 [N, experts_per_token]
    weights: Any


def route(
    x: jax.Array, router: jax.Array, spec: ModelSpec, bias: jax.Array | None = None
) -> Routing:
    """Choose the highest-scoring experts, with weights renormalised if required.

    Args:
      x: normalised activations [N, hidden].
      router: [experts, hidden].
      bias: [experts], added to scores alone.

    Source: DeepSeek-V3 (arXiv:2412.19437, section 2.1.2) for groups and bias.
    """
    scores = lax.dot_general(
        x.astype(jnp.float32),
        router.astype(jnp.float32),
        (((1,), (1,)), ((), ())),
        precision=lax.Precision.HIGHEST,
    )
    if spec.router_sigmoid:
        scores = jax.nn.sigmoid(scores)
        choice = scores if bias is None else scores + bias.astype(jnp.float32)
        _, experts = lax.top_k(_of_best_groups(choice, spec), spec.experts_per_token)
        weights = jnp.take_along_axis(scores, experts, axis=-1)
    else:
        weights, experts = lax.top_k(jax.nn.softmax(scores, axis=-1), spec.experts_per_token)
    if spec.norm_topk:
        weights = weights / weights.sum(axis=-1, keepdims=True)
    if spec.routed_scale != 1.0:
        weights = weights * spec.routed_scale
    return Routing(experts=experts.astype(jnp.int32), weights=weights)


def _of_best_groups(scores: jax.Array, spec: ModelSpec) -> jax.Array:
    if spec.groups_per_token == spec.expert_groups:
        return scores
    grouped = scores.reshape(scores.shape[0], spec.expert_groups, -1)
    best = lax.top_k(grouped, 2)[0].sum(axis=-1)
    _, chosen = lax.top_k(best, spec.groups_per_token)
    is_chosen = jax.nn.one_hot(chosen, spec.expert_groups, dtype=bool).any(axis=1)
    return jnp.where(is_chosen[..., None], grouped, -jnp.inf).reshape(scores.shape)


def mixture(
    x: jax.Array, routing: Routing, real: jax.Array, experts: Experts, spec: ModelSpec
) -> jax.Array:
    """Return the weighted sum of chosen experts' gated blocks; padding is in no group."""
    chosen = jnp.where(real[:, None], routing.experts, spec.experts).reshape(-1)
    order = jnp.argsort(chosen, stable=True)
    sizes = jnp.bincount(chosen, length=spec.experts).astype(jnp.int32)
    rows = x[order // spec.experts_per_token]
    weights = jnp.where(real[:, None], routing.weights, 0.0)
    if spec.weighted_inputs:
        rows = (rows * weights.reshape(-1)[order][:, None]).astype(x.dtype)
        weights = jnp.ones_like(weights)
    gate, up = jnp.split(experts("experts_gate_up", rows, sizes), 2, axis=-1)
    out = experts("experts_down", activate(spec.activation, gate) * up, sizes)
    mine = out[jnp.argsort(order)].reshape(*routing.experts.shape, -1)
    return (mine.astype(jnp.float32) * weights[..., None]).sum(axis=1).astype(x.dtype)
