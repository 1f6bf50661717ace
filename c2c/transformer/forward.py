"""`forward`: tokens in, logits and the cache with their keys and values out.

One function for chunks of prompts, for decode steps and for batches of both. Pure; `run` is the
same under `jit`, compiled once for each shape.
"""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from c2c.models import ModelSpec
from c2c.transformer.cache import Cache, Rows, attend, rows_of, store
from c2c.transformer.linear import Linear, Reference
from c2c.transformer.moe import mixture, route
from c2c.transformer.params import Params, Projections
from c2c.transformer.rope import angles, rotate
from pallas_kernels.arguments import Choice

__all__ = ["forward", "run"]

_UNBOUNDED = 2**30  # a window that hides nothing


def forward(
    params: Params,
    tokens: Any,
    positions: Any,
    cache: Cache,
    spec: ModelSpec,
    *,
    linear: Linear | None = None,
    decode_rows: int = 0,
    wanted: Any = None,
    backend: Choice = "auto",
) -> tuple[jax.Array, Cache]:
    """Compute logits of `tokens`, and add their keys and values to the cache.

    Each row of `cache.tables` is a sequence. Its tokens of this call have consecutive positions,
    those before them are in the cache already, and padding follows them. A row may be all padding.
    No row's result depends on another row, on padding, or on how a prompt was cut into calls
    (beyond rounding).

    Args:
      params: of the model, placed as `linear` wants them.
      tokens: int32 [rows, T]; or [N], flat: rows of equal length, then `decode_rows` rows of one
        token, so that a prompt's chunk and decode steps share one call without padding.
      positions: int32 like tokens, from 0; -1 for padding.
      cache: pages of all layers, and the block tables of these rows; they hold pages for all
        positions given here, others are not stored.
      spec: the model.
      linear: how projections are multiplied; `Reference()` by default.
      decode_rows: rows of one token at the end of flat tokens; [rows, 1] are such anyway.
      wanted: int32 [R], which of the N tokens (rows flattened) to compute logits of; all by
        default.
      backend: of the attention kernels.

    Returns:
      float32 logits, [rows, T, vocab], [N, vocab] or [R, vocab], and the new cache.

    Raises:
      ValueError: shapes do not fit each other.
    """
    linear = Reference() if linear is None else linear
    tokens, positions = jnp.asarray(tokens, jnp.int32), jnp.asarray(positions, jnp.int32)
    if tokens.shape != positions.shape or tokens.ndim not in (1, 2) or not tokens.size:
        raise ValueError(
            f"positions of shape {positions.shape}: expected that of tokens, {tokens.shape}, "
            "[rows, T] or [N], not empty"
        )
    shape, count = tokens.shape, cache.tables.shape[0]
    if tokens.ndim == 2:
        if shape[0] != count or decode_rows:
            raise ValueError(
                f"tokens of shape {shape}: expected {count} rows as in cache.tables, and "
                f"decode_rows=0, got {decode_rows}; flat tokens may be of both kinds"
            )
        decode_rows = count if shape[1] == 1 else 0
    rows = rows_of(positions.reshape(-1), count, decode_rows)
    x, cache = _layers(params, tokens.reshape(-1), cache, rows, spec, linear, backend)
    if wanted is not None:
        x = x[jnp.asarray(wanted, jnp.int32)]
    logits = _head(params, x, spec, linear)
    if wanted is None and len(shape) == 2:
        logits = logits.reshape(*shape, spec.vocab)
    return logits, cache


run = functools.partial(
    jax.jit,
    static_argnames=("spec", "decode_rows", "backend"),
    donate_argnames=("cache",),
)(forward)


def _layers(
    params: Params,
    tokens: jax.Array,
    cache: Cache,
    rows: Rows,
    spec: ModelSpec,
    linear: Linear,
    backend: Choice,
) -> tuple[jax.Array, Cache]:
    """Run all layers: unrolled where each has arrays of its own, else in a scan."""
    projections = linear.prepare(params.projections)
    x = params.embed[tokens]
    turns = angles(jnp.maximum(rows.positions, 0), spec)
    windows = _windows(spec)

    def layer(number: Any, small: dict[str, Any], x: jax.Array, cache: Cache) -> Any:
        return _layer(
            number, small, x, cache, rows, turns, projections, spec, linear, backend
        )

    small = dict(params.layers)
    if windows is not None:
        small["window"] = windows
    if linear.placement.by_layer:
        for number in range(spec.layers):
            x, cache = layer(number, {k: v[number] for k, v in small.items()}, x, cache)
        return x, cache

    def body(carry: Any, scanned: Any) -> Any:
        x, k, v = carry
        x, new = layer(*scanned, x, replace(cache, k=k, v=v))
        return (x, new.k, new.v), None

    numbers = jnp.arange(spec.layers, dtype=jnp.int32)
    (x, k, v), _ = lax.scan(body, (x, cache.k, cache.v), (numbers, small))
    return x, replace(cache, k=k, v=v)


def _layer(
    number: Any,
    small: dict[str, Any],
    x: jax.Array,
    cache: Cache,
    rows: Rows,
    turns: tuple[jax.Array, jax.Array],
    projections: Projections,
    spec: ModelSpec,
    linear: Linear,
    backend: Choice,
) -> tuple[jax.Array, Cache]:
    """Run one layer over N tokens."""

    def project(name: str, x: jax.Array) -> jax.Array:
        out = linear(projections, name, number, x, out_dtype=x.dtype)
        bias = small.get(f"{name}_bias")
        return out if bias is None else out + bias

    def experts(name: str, x: jax.Array, sizes: jax.Array) -> jax.Array:
        return linear.experts(projections, name, number, x, sizes)

    pages = cache.k.shape[0] // spec.layers
    count = x.shape[0]
    seen = _rms_norm(x, small["attention_norm"], spec.norm_eps)
    split = (spec.heads * spec.head_dim, (spec.heads + spec.kv_heads) * spec.head_dim)
    q, k, v = (
        part.reshape(count, -1, spec.head_dim)
        for part in jnp.split(project("qkv", seen), split, axis=-1)
    )
    if spec.qk_norm:
        q = _rms_norm(q, small["q_norm"], spec.norm_eps)
        k = _rms_norm(k, small["k_norm"], spec.norm_eps)
    q, k = rotate(q, *turns), rotate(k, *turns)
    cache = store(cache, rows, number, k, v, pages)
    mixed = attend(
        cache,
        rows,
        number,
        q,
        pages=pages,
        window=small.get("window", spec.sliding_window or None),
        backend=backend,
    )
    x = x + project("o", mixed.reshape(count, -1).astype(x.dtype))
    seen = _rms_norm(x, small["mlp_norm"], spec.norm_eps)
    if spec.experts:
        routing = route(seen, small["router"], spec)
        return x + mixture(seen, routing, rows.positions >= 0, experts, spec), cache
    gate, up = jnp.split(project("gate_up", seen), 2, axis=-1)
    return x + project("down", jax.nn.silu(gate) * up), cache


def _head(params: Params, x: jax.Array, spec: ModelSpec, linear: Linear) -> jax.Array:
    x = _rms_norm(x, params.final_norm, spec.norm_eps)
    projections = linear.prepare({"head": params.projections.get("head", params.embed)})
    return linear(projections, "head", None, x, out_dtype=jnp.float32)


def _rms_norm(x: jax.Array, weight: jax.Array, eps: float) -> jax.Array:
    """Divide by the root of the mean square along the last axis, in float32."""
    wide = x.astype(jnp.float32)
    scale = lax.rsqrt(jnp.mean(jnp.square(wide), axis=-1, keepdims=True) + eps)
    return weight * (wide * scale).astype(x.dtype)


def _windows(spec: ModelSpec) -> np.ndarray | None:
    """Return the window of each layer where they differ, else None."""
    if not spec.partial_window_layers:
        return None
    windows = np.full(spec.layers, _UNBOUNDED, np.int32)
    windows[list(spec.window_layers)] = spec.partial_window
    return windows
