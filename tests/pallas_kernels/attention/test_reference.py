"""The reference on a CPU, within the derived bound of float64, for random shapes and bounds."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pallas_kernels.attention import (
    decode_attention,
    paged_prefill_attention,
    prefill_attention,
    reference,
)
from tests.pallas_kernels.attention.cases import Case, decoding, paged
from tests.pallas_kernels.attention.exact import exact_attention, visible_keys
from tests.tiers import tiered

# Each is compiled once for each block: offsets, lengths and windows are run-time values.
SHAPES: tuple[dict[str, Any], ...] = (
    {"queries": 33, "keys": 90, "heads": 6, "kv_heads": 2},
    {"queries": 1, "keys": 17, "dim": 80, "dtype": "float16"},
    {"queries": 40, "keys": 61, "dim": 1, "dtype": "float32", "causal": False},
)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    shape = draw(st.sampled_from(SHAPES))
    return Case(
        **shape,
        window=draw(st.none() | st.integers(1, 100)) if shape.get("causal", True) else None,
        offsets=draw(st.tuples(*[st.integers(-50, 120)] * 2)),
        lengths=draw(st.tuples(*[st.integers(0, shape["keys"])] * 2)),
        seed=draw(st.integers(0, 2**32 - 1)),
    )


@functools.cache
def in_blocks(block: int, causal: bool) -> Any:
    """Return the reference with blocks of this size, compiled once for each shape."""

    def run(bounds: jax.Array, q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(reference, "KEY_BLOCK", block)
            patch.setattr(reference, "QUERY_BLOCK", block)
            return reference.prefill(q, k, v, bounds, causal=causal).out

    return jax.jit(run)


@settings(max_examples=30)
@given(cases(), st.sampled_from([16, 512]))
def test_prefill_within_the_bound(case: Case, block: int) -> None:
    # blocks of 16 as well, so that small arrays have several, the last one ragged
    widths = np.full(2, case.window or 1 << 30)
    bounds = np.stack([case.offsets, case.row_lengths, widths], axis=1).astype(np.int32)
    out = in_blocks(block, case.causal)(bounds, *case.arrays)
    merges = case.keys // block + 1  # blocks smaller than the bound's: each counts as a merge
    assert case.exact("float32", merges=merges).worst(out) <= 1


@pytest.mark.parametrize("dtype", tiered(["bfloat16", "float16", "float32"]))
def test_several_blocks_of_queries_and_keys(dtype: str) -> None:
    case = Case(
        queries=140, keys=600, heads=2, dtype=dtype, window=300, offsets=(420, -40),
        lengths=(500, 600),
    )  # fmt: skip
    out = prefill_attention(*case.arrays, **case.options(), backend="reference")
    assert out.dtype == case.arrays[0].dtype
    assert case.exact().worst(out) <= 1


def test_the_bound_notices_one_dropped_key() -> None:
    case = Case(queries=4, keys=256, offsets=(252,), dtype="bfloat16")
    seen = case.seen()
    seen[:, :, 17] = False
    wrong = exact_attention(*case.arrays, seen, scale=0.125, out_dtype=np.float32)
    assert case.exact("float32").worst(wrong.out.astype(np.float32)) > 1
    assert case.exact().worst(wrong.out.astype(case.arrays[0].dtype)) > 1


@settings(max_examples=30)
@given(
    # page, pages of a sequence, sequences, queries of a head: each is compiled once
    shape=st.sampled_from([(1, 6, 4, 1), (5, 3, 2, 5), (16, 6, 3, 2), (64, 5, 1, 3)]),
    lengths=st.tuples(*[st.integers(0, 320)] * 4),
    window=st.none() | st.integers(1, 60),
    seed=st.integers(0, 2**32 - 1),
)
def test_pages_in_any_order(
    shape: tuple[int, int, int, int], lengths: tuple[int, ...], window: int | None, seed: int
) -> None:
    page, each, rows, group = shape
    case = decoding(
        tuple(length % (page * each + 1) for length in lengths[:rows]),
        page * each,
        heads=2 * group,
        kv_heads=2,
        window=window,
        seed=seed,
    )
    pool = paged(case, page, seed=seed)
    out = decode_attention(*pool.arguments, window=window, backend="reference")
    assert case.exact().worst(out[:, None]) <= 1


def test_decode_over_several_blocks_of_pages() -> None:
    case = decoding((400, 150, 0), 416, heads=4, kv_heads=2, window=200)
    out = decode_attention(*paged(case, 16).arguments, window=200)
    assert case.exact().worst(out[:, None]) <= 1


@settings(max_examples=20)
@given(
    # page, pages of a row, queries: each is compiled once; the second has two tiles of queries
    # and two blocks of keys, the last of which overlaps the one before
    shape=st.sampled_from([(16, 6, 33), (64, 5, 140)]),
    firsts=st.tuples(*[st.integers(0, 300)] * 2),
    counts=st.tuples(*[st.integers(0, 140)] * 2),
    window=st.none() | st.integers(1, 100),
    seed=st.integers(0, 2**32 - 1),
)
def test_chunks_of_prompts_over_pages_in_any_order(
    shape: tuple[int, int, int], firsts: tuple[int, int], counts: tuple[int, int],
    window: int | None, seed: int,
) -> None:  # fmt: skip
    page, each, queries = shape
    keys = page * each
    offsets = tuple(first % keys for first in firsts)
    ends = zip(offsets, counts, strict=True)
    case = Case(
        queries=queries, keys=keys, heads=4, kv_heads=2, dtype="float32", window=window,
        offsets=offsets, lengths=tuple(min(keys, at + count) for at, count in ends), seed=seed,
    )  # fmt: skip
    pool = paged(case, page, seed=seed)
    where: dict[str, Any] = {
        "window": window,
        "q_offset": np.array(case.offsets, np.int32),
        "kv_lengths": np.array(case.row_lengths, np.int32),
    }
    pages = pool.k_pages, pool.v_pages, pool.tables
    out = paged_prefill_attention(case.arrays[0], *pages, **where, backend="reference")
    assert case.exact().worst(out) <= 1
    # The same blocks of keys in the same order as where they lie one after the other.
    np.testing.assert_array_equal(
        out, prefill_attention(*case.arrays, **where, backend="reference")
    )


def test_rows_without_keys_are_zero() -> None:
    case = Case(queries=5, keys=32, offsets=(-3, 2), lengths=(32, 0))
    out = np.asarray(prefill_attention(*case.arrays, **case.options()))
    assert not out[0, :3].any()
    assert not out[1].any()
    assert out[0, 3:].all()


def test_vmap_equals_a_loop() -> None:
    case = Case(queries=20, keys=70, heads=4, kv_heads=2, offsets=(50, 3, -5), window=33)
    q, k, v = (jnp.asarray(a)[:, None] for a in case.arrays)
    offsets = jnp.array(case.offsets)

    def one(q: Any, k: Any, v: Any, offset: Any) -> Any:
        return prefill_attention(q, k, v, q_offset=offset, window=33)

    together = jax.vmap(one)(q, k, v, offsets)
    assert case.exact().worst(together[:, 0]) <= 1


def test_decode_in_a_scan_under_jit_grows_token_by_token() -> None:
    """A serving loop's call: lengths are traced, the pool is a carry."""
    case = decoding((40,), 48, heads=4, kv_heads=2)
    q, k, v = case.arrays
    tables = np.arange(3, dtype=np.int32)[None]
    k_pages, v_pages = (jnp.asarray(a.reshape(3, 16, 2, 64)) for a in (k[0], v[0]))

    @jax.jit
    def steps(k_pages: jax.Array, v_pages: jax.Array) -> jax.Array:
        def step(length: jax.Array, _: None) -> tuple[jax.Array, jax.Array]:
            out = decode_attention(q[:, 0], k_pages, v_pages, tables, length[None])
            return length + 1, out

        return jax.lax.scan(step, jnp.int32(1), None, length=40)[1]

    outs = steps(k_pages, v_pages)
    for length in (1, 17, 40):
        seen = visible_keys(1, 48, causal=False, window=None, q_offset=0, kv_length=length)
        exact = exact_attention(q, k, v, seen[None], scale=0.125, out_dtype=q.dtype)
        assert exact.worst(outs[length - 1][:, None]) <= 1


def test_run_time_values_do_not_recompile() -> None:
    traced = 0

    @jax.jit
    def call(offset: jax.Array, length: jax.Array, window: jax.Array) -> jax.Array:
        nonlocal traced
        traced += 1
        case = Case(queries=8, keys=64)
        return prefill_attention(
            *case.arrays, q_offset=offset, kv_lengths=length, window=window, backend="reference"
        )

    for offset, length, window in ((0, 64, 5), (56, 60, 100), (-4, 0, 1)):
        call(jnp.int32(offset), jnp.int32(length), jnp.int32(window))
    assert traced == 1


def test_scores_of_long_contexts_are_never_whole() -> None:
    """4096 x 4096 scores of 8 heads would take 512 MiB; keys are not repeated for their heads."""
    shape = (1, 4096, 8, 64)
    q = jax.ShapeDtypeStruct(shape, jnp.bfloat16)
    k = jax.ShapeDtypeStruct((1, 4096, 1, 64), jnp.bfloat16)
    call = jax.jit(lambda q, k, v: prefill_attention(q, k, v, backend="reference"))
    temporary = call.lower(q, k, k).compile().memory_analysis().temp_size_in_bytes
    assert temporary < 64 << 20
