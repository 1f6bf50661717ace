"""Reference attention in jax.numpy."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from pallas_kernels.array_types import Array, Float, Int32
from pallas_kernels.attention.partial import Partial
from pallas_kernels.attention.specs import array_type, score_scale

QUERY_BLOCK = 128
KEY_BLOCK = 128  # stays in a CPU's cache between what is done to it
UNROLLED = 4  # blocks of queries written out one after another: a loop copies their results

Fetch = Callable[[jax.Array], tuple[jax.Array, jax.Array, jax.Array]]
"""Number of a block -> (k, v of [batch, keys, kv_heads, dim], position of the first key)."""


class _Score(NamedTuple):
    scale: float
    soft_cap: float | None

    def __call__(self, products: jax.Array) -> jax.Array:
        scores = self.scale * products
        return scores if self.soft_cap is None else self.soft_cap * jnp.tanh(scores / self.soft_cap)


def prefill(
    q: Float[Array, "b t hq d"],
    k: Float[Array, "b s hkv d"],
    v: Float[Array, "b s hkv d"],
    bounds: Int32[Array, "b 3"],
    *,
    causal: bool,
) -> Partial:
    """Return attention over the keys in bounds: offset, length and window of each row."""
    keys = k.shape[1]
    block = min(KEY_BLOCK, keys)

    def fetch(number: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        begin = jnp.minimum(number * block, keys - block)  # the last one overlaps the one before
        cut_k, cut_v = (lax.dynamic_slice_in_dim(array, begin, block, axis=1) for array in (k, v))
        return cut_k, cut_v, begin

    score = _Score(score_scale(q.shape[-1]), None)
    return _by_tiles(q, fetch, bounds, keys=keys, block=block, causal=causal, score=score)


def paged_prefill(
    q: Float[Array, "b t hq d"],
    k_pages: Float[Array, "p page hkv d"],
    v_pages: Float[Array, "p page hkv d"],
    tables: Int32[Array, "b n"],
    bounds: Int32[Array, "b 3"],
    *,
    soft_cap: float | None = None,
) -> Partial:
    """Return causal attention over paged keys, gathered where seen."""
    page = k_pages.shape[1]
    fetch, block = _from_pages(k_pages, v_pages, tables)
    keys = tables.shape[1] * page
    score = _Score(score_scale(q.shape[-1]), soft_cap)
    return _by_tiles(q, fetch, bounds, keys=keys, block=block, causal=True, score=score)


# Scores need at most `QUERY_BLOCK` x `KEY_BLOCK` per head, and query heads read their KV head in
# place. Blocks that no query sees are not computed. Rows without keys give 0 and -inf; memory
# beyond the lengths may hold anything.
def _by_tiles(
    q: jax.Array,
    fetch: Fetch,
    bounds: jax.Array,
    *,
    keys: int,
    block: int,
    causal: bool,
    score: _Score,
) -> Partial:
    queries = q.shape[1]
    if queries <= QUERY_BLOCK:
        return _attend(q, fetch, bounds, 0, keys=keys, block=block, causal=causal, score=score)
    tiles = -(-queries // QUERY_BLOCK)
    padded = jnp.pad(q, ((0, 0), (0, tiles * QUERY_BLOCK - queries), (0, 0), (0, 0)))
    split = padded.reshape(q.shape[0], tiles, QUERY_BLOCK, *q.shape[2:]).swapaxes(0, 1)

    def tile(_: None, item: tuple[jax.Array, jax.Array]) -> tuple[None, Partial]:
        return None, _attend(
            item[0], fetch, bounds, item[1], keys=keys, block=block, causal=causal, score=score
        )

    firsts = jnp.arange(tiles, dtype=jnp.int32) * QUERY_BLOCK
    done = lax.scan(tile, None, (split, firsts), unroll=min(tiles, UNROLLED))[1]

    def whole(x: jax.Array) -> jax.Array:
        return x.swapaxes(0, 1).reshape(x.shape[1], -1, *x.shape[3:])[:, :queries]

    return Partial(out=whole(done.out), lse=whole(done.lse))


def decode(
    q: Float[Array, "b hq d"],
    k_pages: Float[Array, "p page hkv d"],
    v_pages: Float[Array, "p page hkv d"],
    tables: Int32[Array, "b n"],
    bounds: Int32[Array, "b 3"],
    *,
    soft_cap: float | None = None,
) -> Partial:
    """Return attention of a query a sequence over its pages."""
    fetch, block = _from_pages(k_pages, v_pages, tables)
    done = _attend(
        q[:, None],
        fetch,
        bounds,
        0,
        keys=tables.shape[1] * k_pages.shape[1],
        block=block,
        causal=True,
        score=_Score(score_scale(q.shape[-1]), soft_cap),
    )
    return Partial(out=done.out[:, 0], lse=done.lse[:, 0])


def _from_pages(k_pages: jax.Array, v_pages: jax.Array, tables: jax.Array) -> tuple[Fetch, int]:
    page, table_width = k_pages.shape[1], tables.shape[1]
    # clipped here, where it is cheap: entries beyond a sequence's length may be anything
    tables = jnp.clip(tables, 0, k_pages.shape[0] - 1)
    many = min(max(1, KEY_BLOCK // page), table_width)

    def fetch(number: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        begin = jnp.minimum(
            number * many, table_width - many
        )  # the last one overlaps the one before
        pages = lax.dynamic_slice_in_dim(tables, begin, many, axis=1)
        cut_k, cut_v = (
            pool.at[pages]
            .get(mode="promise_in_bounds")
            .reshape(tables.shape[0], many * page, *pool.shape[2:])
            for pool in (k_pages, v_pages)
        )
        return cut_k, cut_v, begin * page

    return fetch, many * page


def _attend(
    q: jax.Array,
    fetch: Fetch,
    bounds: jax.Array,
    first_query: jax.Array | int,
    *,
    keys: int,
    block: int,
    causal: bool,
    score: _Score,
) -> Partial:
    batch, queries, heads, dim = q.shape
    length, window = bounds[:, 1], bounds[:, 2]
    first = bounds[:, 0] + first_query
    top, bottom = length, jnp.zeros_like(length)
    if causal:
        top = jnp.minimum(top, first + queries)
        bottom = jnp.maximum(first - window + 1, 0)
    begin = jnp.clip(jnp.min(bottom), 0, keys) // block
    end = -(-jnp.clip(jnp.max(top), 0, keys) // block)

    # shapes of the state follow from those of a block, without computing one
    kv_heads = jax.eval_shape(fetch, array_type((), jnp.int32))[0].shape[2]
    group = heads // kv_heads
    rows = (batch, kv_heads, group, queries)
    # Keys of one query are best read where they lie; with the queries of a KV head together, XLA
    # puts its keys together as well.
    how = "btkgd,bskd->bkgts" if queries == 1 else "bkgtd,bskd->bkgts"

    def visit(number: jax.Array, state: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        acc, maximum, total = state
        k, v, start = fetch(number)
        grouped = q.reshape(batch, queries, kv_heads, group, dim)
        if queries > 1:
            grouped = grouped.transpose(0, 2, 3, 1, 4)
        key = start + jnp.arange(block, dtype=jnp.int32)
        inside = (key < length[:, None]) & (key >= number * block)
        visible = inside[:, None]
        if causal:
            position = first[:, None] + jnp.arange(queries, dtype=jnp.int32)
            visible &= key <= position[..., None]
            visible &= key > (position - window[:, None])[..., None]
        # A weight of 0 times what was never written may be NaN
        v = jnp.where(inside[..., None, None], v, 0)
        scores = score(_product(how, grouped, k))
        scores = jnp.where(visible[:, None, None], scores, -jnp.inf)
        higher = jnp.maximum(maximum, scores.max(axis=-1))
        base = jnp.where(higher == -jnp.inf, 0.0, higher)
        weights = jnp.exp(scores - base[..., None])
        factor = jnp.exp(maximum - base)
        acc = acc * factor[..., None] + _product("bkgts,bskd->bkgtd", weights, v)
        return acc, higher, total * factor + weights.sum(axis=-1)

    state = (
        jnp.zeros((*rows, dim), jnp.float32),
        jnp.full(rows, -jnp.inf, jnp.float32),
        jnp.zeros(rows, jnp.float32),
    )
    acc, maximum, total = lax.fori_loop(begin, end, visit, state)
    some = total > 0
    divisor = jnp.where(some, total, 1.0)
    out = acc / divisor[..., None]
    lse = jnp.where(some, maximum + jnp.log(divisor), -jnp.inf)
    return Partial(
        out=jnp.moveaxis(out, 3, 1).reshape(batch, queries, heads, dim),
        lse=jnp.moveaxis(lse, 3, 1).reshape(batch, queries, heads),
    )


def _product(how: str, a: jax.Array, b: jax.Array) -> jax.Array:
    """Multiply in float32, also on a GPU."""
    return jnp.einsum(
        how, a.astype(jnp.float32), b.astype(jnp.float32), precision=lax.Precision.HIGHEST
    )
