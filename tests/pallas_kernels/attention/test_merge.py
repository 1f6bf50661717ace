"""Parts of attention merge into the whole: split anywhere, in any order, with empty parts."""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pallas_kernels.attention import Partial, merge_partial, partial_decode, partial_prefill
from pallas_kernels.attention.partial import merge_stacked
from tests.pallas_kernels.attention.cases import Case, decoding, paged
from tests.pallas_kernels.attention.exact import exact_merge


@st.composite
def some_parts(draw: st.DrawFn) -> list[Partial]:
    """Parts with log-sum-exps far apart, equal, or -inf."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    rows = 5  # one shape: a new one would be compiled
    parts = []
    for _ in range(draw(st.integers(1, 4))):
        spread = draw(st.sampled_from([0.0, 1.0, 30.0, 1e4]))
        lse = (spread * rng.standard_normal(rows)).astype(np.float32)
        lse[rng.random(rows) < 0.3] = -np.inf
        out = rng.standard_normal((rows, 8)).astype(np.float32)
        out[np.isneginf(lse)] = 0
        parts.append(Partial(out=jnp.asarray(out), lse=jnp.asarray(lse)))
    return parts


def within(got: Partial, parts: list[Partial]) -> bool:
    exact = exact_merge([(np.asarray(p.out), np.asarray(p.lse)) for p in parts])
    # a merge of merges rounds once more for each level; each level is within its own bound
    return exact.worst(got.out, got.lse) <= max(1, len(parts) - 1)


@settings(max_examples=60)
@given(some_parts())
def test_merge_is_exact_in_any_order_and_grouping(parts: list[Partial]) -> None:
    assert within(merge_partial(*parts), parts)
    assert within(merge_partial(*reversed(parts)), parts)
    left = right = parts[0]
    for part in parts[1:]:
        left = merge_partial(left, part)
        right = merge_partial(part, right)
    assert within(left, parts)
    assert within(right, parts)
    stacked = merge_stacked(jnp.stack([p.out for p in parts]), jnp.stack([p.lse for p in parts]))
    assert within(stacked, parts)


@given(some_parts())
def test_an_empty_part_changes_no_bit(parts: list[Partial]) -> None:
    empty = Partial.empty(*parts[0].out.shape)
    for part in parts:
        for merged in (merge_partial(part, empty), merge_partial(empty, empty, part)):
            np.testing.assert_array_equal(merged.out, part.out)
            np.testing.assert_array_equal(merged.lse, part.lse)


def test_what_an_empty_part_holds_does_not_matter() -> None:
    part = Partial(out=jnp.ones((2, 4)), lse=jnp.zeros(2))
    junk = Partial(out=jnp.full((2, 4), jnp.nan), lse=jnp.full(2, -jnp.inf))
    np.testing.assert_array_equal(merge_partial(junk, part).out, part.out)


@settings(max_examples=15)
@given(
    cuts=st.lists(st.integers(0, 100), min_size=1, max_size=3).map(sorted),
    offset=st.integers(-20, 110),
    window=st.none() | st.integers(1, 60),
    order=st.randoms(use_true_random=False),
)
def test_prefill_split_anywhere(
    cuts: list[int], offset: int, window: int | None, order: object
) -> None:
    case = Case(
        queries=9, keys=100, heads=4, kv_heads=2, offsets=(offset,), window=window, seed=offset + 20
    )
    q, *arrays = case.arrays
    parts = []
    for begin, end in itertools.pairwise([0, *cuts, 100]):
        # the part's keys first, and NaN behind them: one shape, so one program for all parts
        k, v = (np.full_like(array, np.nan) for array in arrays)
        k[:, : end - begin], v[:, : end - begin] = (array[:, begin:end] for array in arrays)
        parts.append(
            partial_prefill(q, k, v, q_offset=offset - begin, kv_lengths=end - begin, window=window)
        )
    order.shuffle(parts)  # type: ignore[attr-defined]
    merged = merge_partial(*parts)
    assert case.exact("float32", merges=len(parts)).worst(merged.out, merged.lse) <= 1


@pytest.mark.parametrize("window", [None, 70])
def test_decode_split_between_two_pools(window: int | None) -> None:
    """Offloaded attention: the first tokens here, the others there, merged at the query."""
    case = decoding((150, 90, 40), 160, heads=4, kv_heads=2, window=window)
    q, k, v = case.arrays
    lengths, cut = np.array(case.row_lengths), 64
    parts = []
    for begin, end in ((0, cut), (cut, 160)):
        own = np.clip(lengths - begin, 0, end - begin).astype(np.int32)
        k_pages, v_pages = (a[:, begin:end].reshape(-1, 16, 2, 64) for a in (k, v))
        tables = np.arange(k_pages.shape[0], dtype=np.int32).reshape(3, -1)
        positions = (lengths - 1 - begin).astype(np.int32)
        parts.append(
            partial_decode(
                q[:, 0], k_pages, v_pages, tables, own, q_positions=positions, window=window
            )
        )
    assert np.isneginf(parts[1].lse[2]).all()  # the third sequence has nothing in the second pool
    merged = merge_partial(*parts)
    exact = case.exact("float32", merges=2)
    assert exact.worst(merged.out[:, None], merged.lse[:, None]) <= 1
    whole = partial_decode(*paged(case, 16).arguments, window=window)
    assert exact.worst(whole.out[:, None], whole.lse[:, None]) <= 1


def test_merge_under_jit_and_vmap() -> None:
    rng = np.random.default_rng(3)
    parts = [
        Partial(
            out=jnp.asarray(rng.standard_normal((4, 3, 8)), jnp.float32),
            lse=jnp.asarray(rng.standard_normal((4, 3)), jnp.float32),
        )
        for _ in range(2)
    ]
    eager, mapped = merge_partial(*parts), jax.jit(jax.vmap(merge_partial))(*parts)
    np.testing.assert_allclose(mapped.out, eager.out, rtol=1e-5, atol=1e-6)
    assert jax.tree.map(lambda x: x.ndim, mapped) == Partial(out=3, lse=2)


def test_wrong_parts_are_named() -> None:
    part = Partial.empty(2, 3, 8)
    with pytest.raises(ValueError, match="partials=\\(\\): expected at least one"):
        merge_partial()
    with pytest.raises(ValueError, match=r"partials\[1\] of shapes \(2, 4, 8\)"):
        merge_partial(part, Partial.empty(2, 4, 8))
    half = Partial(out=part.out.astype(jnp.bfloat16), lse=part.lse)
    with pytest.raises(ValueError, match=r"partials\[1\].out of dtype bfloat16: expected float32"):
        merge_partial(part, half)
