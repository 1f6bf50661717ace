"""Paged KV cache in device memory."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from c2c.models import ModelSpec
from c2c.ranges import Count, check_value
from c2c.transformer.executables import Executables, Stage
from c2c.transformer.layers.pages import PAGE_TOKENS
from c2c.transformer.layers.params import device_of
from pallas_kernels.arguments import Choice
from pallas_kernels.attention import decode_attention, paged_prefill_attention

__all__ = [
    "Cache",
    "Pooled",
    "Rows",
    "attend",
    "cached_heads",
    "new_cache",
    "new_pool",
    "rows_of",
    "store",
]


def cached_heads(spec: ModelSpec) -> tuple[int, int]:
    """Return number and size of cached heads; a latent vector is one, key and value."""
    if spec.latent is None:
        return spec.kv_heads, spec.head_dim
    return 1, spec.latent.kv_rank + spec.latent.rope_dim


@jax.tree_util.register_dataclass
@dataclass(frozen=True, slots=True, kw_only=True)
class Cache:
    """Keys and values of all layers in pages, and a batch's block tables.

    Page p of layer l is page l * pages + p of one array.
    """

    k: Any  # [layers * pages, page_tokens, kv_heads, head_dim]
    v: Any
    tables: Any  # int32 [rows, width]: pages of each row of the batch, -1 for none

    def with_tables(self, tables: Any) -> Cache:
        """Return the cache with another batch's tables."""
        return replace(self, tables=jax.device_put(np.asarray(tables, np.int32), device_of(self.k)))


@jax.tree_util.register_dataclass
@dataclass(frozen=True, slots=True, kw_only=True)
class Pooled:
    """Two flat arrays shared by the caches of several models, and a batch's block tables.

    A block is a page per layer: tables hold the first, layer l is l pages later.
    """

    k: Any  # [elements]
    v: Any
    tables: Any  # int32 [rows, width]: first pages of blocks, -1 for none

    def seen_by(self, spec: ModelSpec) -> Cache:
        """Return the arrays in a model's pages, without a copy."""
        shape = (-1, PAGE_TOKENS, *cached_heads(spec))
        return Cache(k=self.k.reshape(shape), v=self.v.reshape(shape), tables=self.tables)

    def with_pages(self, cache: Cache) -> Pooled:
        """Return the pool after a model's writes."""
        return replace(self, k=cache.k.reshape(-1), v=cache.v.reshape(-1))


def new_pool(
    elements: int, *, dtype: Any, executables: Executables | None = None, device: Any = None
) -> Pooled:
    """Return a zero-filled pool of so many keys and values."""
    k, v = _zeros_on(device, (elements,), dtype, executables)
    return Pooled(k=k, v=v, tables=None)


def new_cache(
    spec: ModelSpec,
    *,
    pages: int,
    page_tokens: int,
    dtype: Any,
    tables: Any = None,
    executables: Executables | None = None,
    device: Any = None,
) -> Cache:
    """Return a cache in device memory.

    Args:
      page_tokens: positions; the decode kernel supports 16, 32 and multiples of 64.

    Raises:
      SettingError: a size below 1.
    """
    for name, value in (("pages", pages), ("page_tokens", page_tokens)):
        check_value(value, Count, f"cache.{name}")
    shape = (spec.layers * pages, page_tokens, *cached_heads(spec))
    k, v = _zeros_on(device, shape, dtype, executables)
    none = np.full((1, 1), -1, np.int32)
    return Cache(k=k, v=v, tables=none).with_tables(none if tables is None else tables)


def _zeros_on(
    device: Any, shape: tuple[int, ...], dtype: Any, executables: Executables | None
) -> tuple[Any, Any]:
    if executables is None:
        on = jax.devices()[0] if device is None else device
        return jnp.zeros(shape, dtype, device=on), jnp.zeros(shape, dtype, device=on)
    zeros = executables.on(device).bind(_ZEROS)
    kind = str(np.dtype(dtype))
    return zeros(shape=shape, dtype=kind), zeros(shape=shape, dtype=kind)


def _zeros(*, shape: tuple[int, ...], dtype: str) -> jax.Array:
    return jnp.zeros(shape, dtype)


_ZEROS = Stage(name="zeros", function=_zeros, static=("shape", "dtype"))


@jax.tree_util.register_dataclass
@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Positions of N tokens: rows of `chunk` tokens, then rows of one.

    Attributes:
      positions: int32 [N], -1 for padding.
      row: int32 [N], batch row of each token.
      starts: int32 [rows], first positions.
      counts: int32 [rows], tokens without padding.
      chunk_rows: rows of `chunk` tokens.
    """

    positions: Any
    row: Any
    starts: Any
    counts: Any
    chunk_rows: int = field(metadata={"static": True})
    chunk: int = field(metadata={"static": True})

    @property
    def lengths(self) -> jax.Array:
        """Length of each token's sequence, with this call: int32 [N]."""
        lengths: jax.Array = (self.starts + self.counts)[self.row]
        return lengths


def rows_of(positions: jax.Array, rows: int, decode_rows: int) -> Rows:
    """Return the rows of flat `positions` [N], with `decode_rows` last."""
    total = positions.shape[0]
    chunk_rows = rows - decode_rows
    tokens = total - decode_rows
    if chunk_rows < 0 or tokens < 0 or (tokens % chunk_rows if chunk_rows else tokens):
        raise ValueError(
            f"tokens of shape ({total},): expected {chunk_rows} rows of equal length and "
            f"{decode_rows} of one token, {rows} rows being in cache.tables"
        )
    chunk = tokens // chunk_rows if chunk_rows else 0
    first = jnp.repeat(jnp.arange(chunk_rows, dtype=jnp.int32), chunk)
    last = jnp.arange(chunk_rows, rows, dtype=jnp.int32)
    chunks = positions[:tokens].reshape(chunk_rows, chunk)
    ones = positions[tokens:]
    starts = jnp.concatenate([chunks[:, 0] if chunk else jnp.zeros(chunk_rows, jnp.int32), ones])
    counts = jnp.concatenate([(chunks >= 0).sum(axis=1), ones >= 0])
    return Rows(
        positions=positions,
        row=jnp.concatenate([first, last]),
        starts=jnp.maximum(starts, 0),
        counts=counts.astype(jnp.int32),
        chunk_rows=chunk_rows,
        chunk=chunk,
    )


def store(cache: Cache, rows: Rows, first: Any, k: jax.Array, v: jax.Array) -> Cache:
    """Write new keys and values [N, kv_heads, head_dim], but no padding, to pages.

    `first`: the layer's page offset; may be traced.
    """
    page_tokens, width = cache.k.shape[1], cache.tables.shape[1]
    index = rows.positions // page_tokens
    page = cache.tables[rows.row, jnp.clip(index, 0, width - 1)]
    usable = (rows.positions >= 0) & (index < width) & (page >= 0)
    # out of range, so that mode="drop" drops it
    page = jnp.where(usable, page + first, cache.k.shape[0])
    slot = rows.positions % page_tokens
    return replace(
        cache,
        k=cache.k.at[page, slot].set(k.astype(cache.k.dtype), mode="drop"),
        v=cache.v.at[page, slot].set(v.astype(cache.v.dtype), mode="drop"),
    )


def attend(
    cache: Cache,
    rows: Rows,
    first: Any,
    q: jax.Array,
    *,
    window: Any,
    soft_cap: float | None = None,
    backend: Choice,
) -> jax.Array:
    """Attend from each token to its row's keys up to its position: [N, heads, head_dim].

    Args:
      cache: with the new tokens.
      first: page offset of this layer; may be traced.
      q: [N, heads, head_dim].
      window: positions seen, with a query's own; None: all; may be traced.
    """
    tables = jnp.maximum(cache.tables, 0) + first
    lengths = jnp.where(rows.counts > 0, rows.starts + rows.counts, 0)
    split, tokens = rows.chunk_rows, rows.chunk_rows * rows.chunk
    parts = []
    if tokens:
        heads = (q.shape[1], q.shape[2])
        out = paged_prefill_attention(
            q[:tokens].reshape(split, rows.chunk, *heads),
            cache.k,
            cache.v,
            tables[:split],
            window=window,
            q_offset=rows.starts[:split],
            kv_lengths=lengths[:split],
            soft_cap=soft_cap,
            backend=backend,
        )
        parts.append(out.reshape(tokens, *heads))
    if tokens < q.shape[0]:
        parts.append(
            decode_attention(
                q[tokens:],
                cache.k,
                cache.v,
                tables[split:],
                lengths[split:],
                window=window,
                soft_cap=soft_cap,
                backend=backend,
            )
        )
    return parts[0] if len(parts) == 1 else jnp.concatenate(parts)
