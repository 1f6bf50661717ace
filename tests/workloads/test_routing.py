"""The router of experts: pure, uniform without skew, sticky with locality."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numba
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from c2c.compiling.builder import OPTIONS
from c2c.draws import draw, hashed
from c2c.simulator.expert_cache.tokens import (
    Followed,
    draw_token,
    follow,
    nothing_followed,
    token_experts,
)
from c2c.workloads import EMBEDDING, Router, RouterTables, embed, router_tables, token_key, topic_of

SHAPE = (4, 16, 2)


def walk(
    tables: RouterTables, followed: Followed, request: int, positions: Any,
    out: np.ndarray, got: np.ndarray,
) -> None:  # fmt: skip
    follow(tables, followed, 0, 0, request)
    for k in range(len(positions)):
        draw_token(tables, followed, 0, 0, positions[k])
        for layer in range(tables.layers[0]):
            token_experts(tables, followed, 0, 0, layer, positions[k], out)
            for j in range(len(out)):
                got[k, layer, j] = out[j]


walk_compiled = numba.njit(**OPTIONS)(walk)


def taken(
    tables: RouterTables, request: int, positions: Sequence[int], *, compiled: bool = True
) -> np.ndarray:
    """Return the experts [position, layer, place] of a request's tokens."""
    per_token = int(tables.per_token[0])
    got = np.zeros((len(positions), int(tables.layers[0]), per_token), np.int64)
    at, out = np.asarray(positions, np.int64), np.zeros(per_token, np.int64)
    (walk_compiled if compiled else walk)(
        tables, nothing_followed(tables, 1), request, at, out, got
    )
    return got


def plainly_taken(router: Router, seed: int, request: int, positions: Sequence[int]) -> np.ndarray:
    """Return the same in floating point, token by token, as the router's law says it."""
    layers, experts, places = SHAPE
    tables = router_tables(router, [SHAPE], seed)
    weight = np.arange(1.0, experts + 1.0) ** -router.skew
    cumulative = np.append((np.cumsum(weight) / weight.sum())[:-1], 1.0)
    order = tables.order[0, topic_of(tables, request)]
    got = np.zeros((len(positions), layers, places), np.int64)
    for n, layer in np.ndindex(len(positions), layers):
        key = token_key(tables, request, layer)
        found: list[int] = []
        for k in range(places):
            at = int(positions[n])
            u = hashed(hashed(key, at), k) / 2**32
            while at > 0 and u < router.locality:
                at -= 1
                u = hashed(hashed(key, at), k) / 2**32
            if at > 0:
                u = (u - router.locality) / (1.0 - router.locality)
            tries = 0
            while (e := int(order[layer, np.searchsorted(cumulative, u, side="right")])) in found:
                tries += 1
                assert tries < 64, "the next free expert is another law"
                u = hashed(hashed(key, at), k + tries * experts) / 2**32
            found.append(e)
        got[n, layer] = found
    return got


def of_requests(router: Router, requests: int, tokens: int, seed: int = 1) -> np.ndarray:
    tables = router_tables(router, [SHAPE], seed)
    return np.array([taken(tables, r, range(tokens)) for r in range(requests)])


@settings(max_examples=25, deadline=None)
@given(
    skew=st.sampled_from([0.0, 0.7, 3.0]), locality=st.sampled_from([0.0, 0.5, 0.95]),
    request=st.integers(0, 2**40), position=st.integers(0, 300), seed=st.integers(0, 2**31),
)  # fmt: skip
def test_what_is_drawn_depends_on_nothing_else(
    skew: float, locality: float, request: int, position: int, seed: int
) -> None:
    tables = router_tables(Router(skew=skew, locality=locality), [SHAPE], seed)
    alone = taken(tables, request, [position])
    among = taken(tables, request, range(position + 1))
    np.testing.assert_array_equal(alone[0], among[position])
    np.testing.assert_array_equal(alone, taken(tables, request, [position], compiled=False))
    assert all(len(set(places)) == SHAPE[2] for token in among for places in token)
    assert alone.min() >= 0
    assert alone.max() < SHAPE[1]


@pytest.mark.parametrize("skew", [0.0, 0.6, 1.2])
@pytest.mark.parametrize("locality", [0.0, 0.3, 0.9])
def test_tokens_take_what_the_law_says_whichever_is_asked_first(
    skew: float, locality: float
) -> None:
    """One after another, the same again, one back, further back, and on after a gap."""
    router = Router(skew=skew, locality=locality)
    tables = router_tables(router, [SHAPE], 5)
    for request in (0, 3, 2**40):
        positions = [*range(40), 39, 38, 17, 18, 19, 60, 61, 0, 1]
        np.testing.assert_array_equal(
            taken(tables, request, positions), plainly_taken(router, 5, request, positions)
        )


def test_without_skew_and_locality_all_sets_are_equally_likely() -> None:
    got = np.sort(of_requests(Router(), 60, 100), axis=-1).reshape(-1, 2)
    counts = np.bincount(got[:, 0] * 16 + got[:, 1], minlength=256).reshape(16, 16)
    pairs = counts[np.triu_indices(16, 1)]
    expected = len(got) / 120
    chi = float(((pairs - expected) ** 2 / expected).sum())
    assert counts[np.tril_indices(16)].sum() == 0
    assert 119 - 5 * (2 * 119) ** 0.5 < chi < 119 + 5 * (2 * 119) ** 0.5


@pytest.mark.parametrize("locality", [0.0, 0.5, 0.9])
def test_an_expert_is_kept_with_the_probability_of_locality(locality: float) -> None:
    got = of_requests(Router(locality=locality), 40, 200)
    kept = (got[:, 1:, :, 0] == got[:, :-1, :, 0]).mean()
    assert kept == pytest.approx(locality + (1 - locality) / 16, abs=0.01)


def test_skew_makes_some_experts_popular_and_topics_differ_in_which() -> None:
    tables = router_tables(Router(skew=1.2, topics=4), [SHAPE], 5)
    by_topic = np.zeros((4, 16))
    for request in range(200):
        got = taken(tables, request, range(20))[:, 0]
        by_topic[topic_of(tables, request)] += np.bincount(got.ravel(), minlength=16)
    share = by_topic / by_topic.sum(axis=1, keepdims=True)
    favourites = share.argmax(axis=1)
    np.testing.assert_array_equal(favourites, tables.order[0, :, 0, 0])
    assert (share.max(axis=1) > 3 / 16).all()


def test_embeddings_of_a_topic_lie_together() -> None:
    tables = router_tables(Router(topics=4), [SHAPE], 5)
    vectors = np.zeros((120, EMBEDDING))
    for request in range(120):
        embed(tables, request, vectors[request])
    topics = np.array([topic_of(tables, r) for r in range(120)])
    alike = vectors @ vectors.T
    same = topics[:, None] == topics
    others = ~np.eye(120, dtype=bool)
    assert np.allclose(np.diag(alike), 1.0)
    assert alike[same & others].mean() > alike[~same].mean() + 0.3


def test_draws_are_uniform_and_unrelated() -> None:
    drawn = np.array([draw(7, r, p, 3, 0) for r in range(60) for p in range(60)])
    assert drawn.mean() == pytest.approx(0.5, abs=0.02)
    assert drawn.var() == pytest.approx(1 / 12, abs=0.005)
    assert abs(np.corrcoef(drawn[1:], drawn[:-1])[0, 1]) < 0.05
