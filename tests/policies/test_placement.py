"""Placement, eviction, routing, chunk choice and admission."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from c2c.policies import (
    CANDIDATE_DTYPE,
    PLACEMENTS,
    ROUTE_DTYPE,
    choose_chunk,
    choose_victim,
    link_demand_gbps,
    may_join,
    place,
    route_least_outstanding,
    wants_another_instance,
)


def candidates(*rows: tuple[int, int, float, int, float]) -> Any:
    """Rows of (instance, free, last used, KV capacity, link left); nothing promised beside it."""
    return np.array([(*r, r[4]) for r in rows], CANDIDATE_DTYPE).view(np.recarray)


row = st.tuples(
    st.integers(0, 9), st.integers(0, 1), st.floats(0, 9), st.integers(0, 50), st.floats(0, 400)
)


@given(st.lists(row, min_size=1, max_size=12), st.integers(1, 50), st.floats(0, 400))
def test_bandwidth_aware_choice_is_admissible_and_complete(
    rows: list[tuple[int, int, float, int, float]], tokens: int, demand: float
) -> None:
    table = candidates(*rows)
    fits = [r[3] >= tokens and r[4] >= demand for r in rows]
    chosen = place(PLACEMENTS["bandwidth_aware"], table, len(rows), tokens, demand, 0)
    assert (chosen >= 0) == any(fits)
    if chosen >= 0:
        assert fits[chosen]
        if any(ok and r[1] == 1 for ok, r in zip(fits, rows, strict=True)):
            assert rows[chosen][1] == 1  # never evicts while a free slice will do


def test_bandwidth_aware_order_and_ties() -> None:
    table = candidates(
        (0, 0, 5.0, 10, 300.0),
        (1, 1, 9.0, 10, 100.0),
        (2, 1, 8.0, 10, 200.0),
        (3, 1, 7.0, 10, 200.0),
    )
    assert place(0, table, 4, 10, 50.0, 0) == 3  # free, most link left, unused for longest
    assert place(0, table, 4, 10, 250.0, 0) == 0  # only the first has the bandwidth
    assert place(0, table, 4, 11, 50.0, 0) == -1
    table[3].unpromised_gbps = 150.0  # an inactive model on that chip would need 50
    assert place(0, table, 4, 10, 50.0, 0) == 2
    same = candidates((7, 1, 0.0, 9, 9.0), (8, 1, 0.0, 9, 9.0))
    assert place(0, same, 2, 1, 1.0, 0) == 0  # a tie goes to the first row


def test_random_placement_is_a_uniform_function_of_its_key() -> None:
    table = candidates(*[(i, 1, 0.0, 10 if i != 2 else 1, 0.0) for i in range(5)])
    draws = [place(PLACEMENTS["random"], table, 5, 5, 999.0, key) for key in range(4000)]
    assert draws == [place(PLACEMENTS["random"], table, 5, 5, 999.0, key) for key in range(4000)]
    counts = Counter(draws)
    assert set(counts) == {0, 1, 3, 4}  # row 2 lacks KV capacity
    assert max(counts.values()) - min(counts.values()) < 200  # 6 sigma of 1000 +- 27
    assert place(PLACEMENTS["random"], table, 5, 99, 0.0, 1) == -1


def test_first_idle_ignores_the_link() -> None:
    table = candidates((0, 0, 1.0, 10, 0.0), (1, 0, 0.5, 10, 0.0))
    assert place(PLACEMENTS["first_idle"], table, 2, 5, 999.0, 0) == 1


@given(st.lists(st.tuples(st.floats(0, 100), st.booleans()), min_size=1, max_size=10))
def test_victim_is_the_least_recently_used_inactive(rows: list[tuple[float, bool]]) -> None:
    used = np.array([r[0] for r in rows])
    idle = np.array([r[1] for r in rows])
    victim = choose_victim(used, idle, len(rows))
    if not idle.any():
        assert victim == -1
    else:
        assert idle[victim]
        assert used[victim] == used[idle].min()


def test_routing() -> None:
    rows = [(4, 3, 0, 100), (5, 1, 1, 100), (6, 2, 0, 100), (7, 2, 0, 100)]
    table = np.array(rows, ROUTE_DTYPE).view(np.recarray)
    assert route_least_outstanding(table, 4, 50) == 2  # row 1 is draining; ties to the first
    assert route_least_outstanding(table, 4, 500) == -1
    assert route_least_outstanding(table, 0, 1) == -1
    assert not wants_another_instance(10**6, 0)
    assert wants_another_instance(4, 4)
    assert not wants_another_instance(3, 4)


def test_demand_and_admission() -> None:
    assert link_demand_gbps(16e9, 0.2) == 80.0
    assert may_join(10, 100, 90, 3, 4)
    assert not may_join(11, 100, 90, 3, 4)
    assert not may_join(0, 100, 1, 4, 4)


def test_chunk_is_the_smallest_that_holds_every_limit() -> None:
    chunks = np.array([512, 128, 256])
    ttft = np.array([0.5, 2.0, 0.9])
    hbm = np.array([10.0, 10.0, 10.0])
    compute = np.array([0.5, 0.5, 0.5])
    args = {"ttft_slo_s": 1.0, "hbm_limit_gbps": 50.0}
    assert choose_chunk(chunks, ttft, hbm, compute, **args) == (256, True)
    assert choose_chunk(chunks, ttft, hbm * [1, 1, 9], compute, **args) == (512, True)
    # nothing holds: the fastest, and it says so
    assert choose_chunk(chunks, ttft, hbm, compute * 9, **args) == (512, False)
