"""Placement, eviction, routing, chunk choice and admission."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from c2c.policies import (
    CANDIDATE_DTYPE,
    ROUTE_DTYPE,
    AtBacklog,
    AtOutstanding,
    BandwidthAware,
    ByQueue,
    FirstIdle,
    LeastLoaded,
    LeastOutstanding,
    LeastRecentlyUsed,
    OneInstance,
    RandomIdle,
    ReserveAll,
    WhereWorkIs,
    choose_chunk,
    chunk_tokens,
    goes_before,
    largest_chunk,
    link_demand_gbps,
    may_join,
    place,
    route,
    wants_another,
)
from c2c.policies.system import Nothing

OWN = Nothing()


def candidates(*rows: tuple[int, int, float, int, float]) -> Any:
    """Rows of (instance, free, last used, KV capacity, link left); nothing promised beside it."""
    table = np.zeros(len(rows), CANDIDATE_DTYPE).view(np.recarray)
    for name, column in zip(
        ("instance", "is_free", "last_used_s", "kv_capacity", "link_left_gbps"),
        zip(*rows, strict=True),
        strict=True,
    ):
        table[name] = column
    table.unpromised_gbps, table.fits_now = table.link_left_gbps, 1
    return table


row = st.tuples(
    st.integers(0, 9), st.integers(0, 1), st.floats(0, 9), st.integers(0, 50), st.floats(0, 400)
)


@given(st.lists(row, min_size=1, max_size=12), st.integers(1, 50), st.floats(0, 400))
def test_bandwidth_aware_choice_is_admissible_and_complete(
    rows: list[tuple[int, int, float, int, float]], tokens: int, demand: float
) -> None:
    table = candidates(*rows)
    fits = [r[3] >= tokens and r[4] >= demand for r in rows]
    chosen = place(BandwidthAware(), OWN, table, len(rows), tokens, demand, 0)
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
    assert (
        place(BandwidthAware(), OWN, table, 4, 10, 50.0, 0) == 3
    )  # free, most link left, unused for longest
    assert (
        place(BandwidthAware(), OWN, table, 4, 10, 250.0, 0) == 0
    )  # only the first has the bandwidth
    assert place(BandwidthAware(), OWN, table, 4, 11, 50.0, 0) == -1
    table[3].unpromised_gbps = 150.0  # an inactive model on that chip would need 50
    assert place(BandwidthAware(), OWN, table, 4, 10, 50.0, 0) == 2
    same = candidates((7, 1, 0.0, 9, 9.0), (8, 1, 0.0, 9, 9.0))
    assert place(BandwidthAware(), OWN, same, 2, 1, 1.0, 0) == 0  # a tie goes to the first row


def test_random_placement_is_a_uniform_function_of_its_key() -> None:
    table = candidates(*[(i, 1, 0.0, 10 if i != 2 else 1, 0.0) for i in range(5)])
    draws = [place(RandomIdle(), OWN, table, 5, 5, 999.0, key) for key in range(4000)]
    assert draws == [place(RandomIdle(), OWN, table, 5, 5, 999.0, key) for key in range(4000)]
    counts = Counter(draws)
    assert set(counts) == {0, 1, 3, 4}  # row 2 lacks KV capacity
    assert max(counts.values()) - min(counts.values()) < 200  # 6 sigma of 1000 +- 27
    assert place(RandomIdle(), OWN, table, 5, 99, 0.0, 1) == -1


def test_first_idle_ignores_the_link() -> None:
    table = candidates((0, 0, 1.0, 10, 0.0), (1, 0, 0.5, 10, 0.0))
    assert place(FirstIdle(), OWN, table, 2, 5, 999.0, 0) == 1


def test_least_loaded_prefers_what_is_there_among_slices_that_have_as_much_to_do() -> None:
    table = candidates(*[(i, 0, 0.0, 10, 0.0) for i in range(4)])
    table.load_s = [0.1, 0.02, 0.02, 0.02]
    table.is_free[2], table.is_resident[3] = 1, 1
    policy = LeastLoaded()
    assert place(policy, OWN, table, 4, 10, 999.0, 0) == 3
    assert place(policy, OWN, table, 3, 10, 999.0, 0) == 2  # a free place before an eviction
    table.fits_now[1:] = 0  # a request that would wait for room goes to the busier slice
    assert place(policy, OWN, table, 4, 10, 999.0, 0) == 0
    assert place(policy, OWN, table, 4, 11, 999.0, 0) == -1


@given(st.floats(0, 100), st.floats(0, 100))
def test_the_model_unused_for_longest_gives_way(a: float, b: float) -> None:
    policy = LeastRecentlyUsed()
    assert goes_before(policy, a, b) == (a < b)
    assert not (goes_before(policy, a, b) and goes_before(policy, b, a))


def routes(*rows: tuple[int, int, int, int, float]) -> Any:
    return np.array([(*row, 0.0, 0.0) for row in rows], ROUTE_DTYPE).view(np.recarray)


def test_routing() -> None:
    table = routes(
        (4, 3, 0, 100, 0.0), (5, 1, 1, 100, 0.0), (6, 2, 0, 100, 0.0), (7, 2, 0, 100, 0.0)
    )
    least = LeastOutstanding()
    assert route(least, OWN, table, 4, 50) == 2  # row 1 is draining; ties to the first
    assert route(least, OWN, table, 4, 500) == -1
    assert route(least, OWN, table, 0, 1) == -1
    table = routes((4, 0, 0, 100, 0.0), (5, 3, 0, 100, 0.9), (6, 9, 0, 100, 0.2))
    assert route(WhereWorkIs(), OWN, table, 3, 50) == 2  # has work, on the least loaded slice
    assert route(WhereWorkIs(), OWN, table, 1, 50) == -1  # idle: placing decides


def test_one_more_instance() -> None:
    assert not wants_another(OneInstance(), 10**6, 1e6, True)
    assert wants_another(AtOutstanding(4), 4, 0.0, False)
    assert not wants_another(AtOutstanding(4), 3, 9.0, True)
    assert wants_another(AtBacklog(0.5), 1, 0.5, False)
    assert wants_another(AtBacklog(0.5), 1, 0.0, True)
    assert not wants_another(AtBacklog(0.5), 99, 0.4, False)


def test_demand_and_admission() -> None:
    assert link_demand_gbps(16e9, 0.2) == 80.0
    assert may_join(ReserveAll(), 10.0, 10.0, 3, 4)
    assert not may_join(ReserveAll(), 11.0, 10.0, 3, 4)
    assert not may_join(ReserveAll(), 0.0, 99.0, 4, 4)


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


@given(st.integers(1, 4096), st.integers(0, 100_000), st.integers(1, 4096))
def test_a_chunk_grows_with_what_waits(profiled: int, backlog: int, limit: int) -> None:
    policy = ByQueue(limit_tokens=limit)
    got = chunk_tokens(policy, profiled, backlog, 3)
    assert profiled <= got <= max(profiled, limit)
    assert got <= chunk_tokens(policy, profiled, backlog + 500, 3)
    if backlog < 2 * policy.prompt_tokens:
        assert got < 2 * profiled or got == profiled
    if profiled <= limit <= largest_chunk(policy, (profiled,)):
        assert chunk_tokens(policy, profiled, 10**9, 0) == limit
