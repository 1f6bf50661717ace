"""Sessions in the loop: a turn comes after the answer before it and a time to think."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from c2c.serving import prepare
from c2c.workloads import ClosedLoop, RequestBlock, build_workload, concatenate
from c2c.workloads.prefixes import Lists
from tests.simulator.test_prefix_cache import served
from tests.simulator.worlds import in_both_forms, setup, simulate, with_settings

SPECS = ("llama-3-3b", "llama-3-8b", "llama-3-3b")


def talks(seed: int, **changes: Any) -> RequestBlock:
    given = {
        "kind": "conversations", "requests": 80, "models": 3, "rate_rps": 4.0, "turns": 4.0,
        "think_s": 2.0, "max_total_tokens": 4000, "block_tokens": 32, "system_tokens": 100,
    }  # fmt: skip
    return concatenate(build_workload(given | changes, ("a", "b", "c"), seed).blocks())


def with_cache(host_bytes: float = 4e9, hbm: bool = True, **changes: Any) -> Any:
    made = setup(*SPECS, **changes)
    system = with_settings(made.system, prefix_cache__hbm=hbm, prefix_cache__host_bytes=host_bytes)
    return prepare(replace(made, system=system))


@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 2**31), cached=st.booleans())
def test_a_turn_comes_after_the_answer_and_the_time_to_think(seed: int, cached: bool) -> None:
    block = talks(seed)
    what = with_cache() if cached else prepare(setup(*SPECS))
    records = simulate(what, block, compiled=True)[0]
    assert len(records) == len(block)
    assert block.session is not None
    assert block.turn is not None
    assert block.think_s is not None
    row_of = {(s, t): r for r, (s, t) in enumerate(zip(block.session, block.turn, strict=True))}
    for (session, turn), r in row_of.items():
        if turn == 1:
            assert records.arrival_s[r] == block.arrival_s[r]
        else:
            before = row_of[session, turn - 1]
            assert records.arrival_s[r] == records.finished_s[before] + block.think_s[r]


def test_compiled_and_interpreted_loops_agree() -> None:
    block, what = talks(3), with_cache()
    one, other = (served(what, block, compiled=c, parts=1)[0] for c in (True, False))
    assert one.tobytes() == other.tobytes()


def test_sessions_come_in_parts_as_well() -> None:
    block, what = talks(5), prepare(setup(*SPECS))
    whole = simulate(what, block, compiled=True)[0]
    parts = [block.take(slice(at, at + 17)) for at in range(0, len(block), 17)]
    assert simulate(what, *parts, compiled=True)[0].tobytes() == whole.tobytes()


def test_a_turn_after_one_that_failed_comes_all_the_same() -> None:
    block = talks(1, requests=40)
    prompt = block.prompt_tokens.copy()
    assert block.turn is not None
    prompt[block.turn == 1] = 200_000  # beyond every model's context
    block = replace(block, prompt_tokens=prompt).hashed(None, 0)
    records = simulate(prepare(setup(*SPECS)), block, compiled=True)[0]
    assert len(records) == 40
    assert ((records.failure != 0) == (block.turn == 1)).all()


def test_answers_are_found_by_the_next_turn() -> None:
    """Alone on a slice, with room for all, a turn computes what is new and the last short block."""
    block = talks(2, requests=60, think_s=500.0, rate_rps=0.001, models=1)
    for hbm, host_bytes in ((True, 0.0), (False, 60e9)):
        records, _ = served(with_cache(host_bytes, hbm), block, parts=1)
        found = records.cached_hbm_tokens + records.cached_host_tokens
        assert block.session is not None
        assert block.turn is not None
        row_of = {k: r for r, k in enumerate(zip(block.session, block.turn, strict=True))}
        later = [(row_of[s, t - 1], r) for (s, t), r in row_of.items() if t > 1]
        assert len(later) > 10
        for before, r in later:
            # The answer's last token is in no KV cache when the answer ends.
            known = records.prompt_tokens[before] + records.output_tokens[before] - 1
            assert found[r] == known // 32 * 32
        assert (records.cached_hbm_tokens.any(), records.cached_host_tokens.any()) == (hbm, not hbm)


def test_think_time_alone_is_no_session() -> None:
    block = replace(talks(1), session=None, turn=None)
    records = simulate(prepare(setup(*SPECS)), block, compiled=True)[0]
    assert np.array_equal(records.arrival_s, block.arrival_s)


@pytest.mark.parametrize("row", [0, 7])
def test_a_turn_whose_session_is_cut_off_comes_at_its_time(row: int) -> None:
    block = talks(1)
    rest = block.take(slice(row, None))
    records = simulate(prepare(setup(*SPECS)), rest, compiled=True)[0]
    assert rest.turn is not None
    assert rest.session is not None
    first = np.unique(rest.session, return_index=True)[1]
    assert np.array_equal(records.arrival_s[first], rest.arrival_s[first])


def graphs(seed: int, sessions: int = 6) -> RequestBlock:
    """Return sessions of requests that each wait for up to three earlier ones of theirs."""
    g = np.random.default_rng(seed)
    rows = [
        (float(g.uniform(0, 20)), s, t, g.permutation(np.arange(1, t))[: g.integers(0, 4)].tolist())
        for s in range(sessions)
        for t in range(1, int(g.integers(2, 12)))
    ]
    rows.sort()
    n, parents = len(rows), [row[3] for row in rows]
    return RequestBlock(
        arrival_s=np.array([row[0] for row in rows]),
        model=g.integers(0, 3, n).astype(np.int32),
        prompt_tokens=g.integers(1, 900, n).astype(np.int32),
        output_tokens=g.integers(1, 60, n).astype(np.int32),
        session=np.array([row[1] for row in rows]),
        turn=np.array([row[2] for row in rows], np.int32),
        think_s=np.array([0.0, 0.5, 4.0])[g.integers(0, 3, n)],
    ).waiting(
        Lists(
            first=np.concatenate([[0], np.cumsum([*map(len, parents)])]),
            values=np.array([turn for each in parents for turn in each], np.int32),
        )
    )


def parents_of(block: RequestBlock) -> list[list[int]]:
    assert block.session is not None
    assert block.turn is not None
    parents = block.parents()
    assert parents is not None
    row_of = {(s, t): r for r, (s, t) in enumerate(zip(block.session, block.turn, strict=True))}
    lists = np.split(parents.values, parents.first[1:-1])
    return [[row_of[s, t] for t in turns] for s, turns in zip(block.session, lists, strict=True)]


@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 2**31))
def test_a_request_comes_after_the_last_of_those_that_it_waits_for(seed: int) -> None:
    block = graphs(seed)
    records = simulate(prepare(setup(*SPECS)), block, compiled=True)[0]
    assert len(records) == len(block)
    assert block.think_s is not None
    for r, parents in enumerate(parents_of(block)):
        last_s = max((records.finished_s[p] + block.think_s[r] for p in parents), default=None)
        assert records.arrival_s[r] == (block.arrival_s[r] if last_s is None else last_s)


def test_both_forms_of_the_loop_agree_on_graphs() -> None:
    block, what = graphs(4), prepare(setup(*SPECS))
    for loop in (None, ClosedLoop(concurrency=2)):
        in_both_forms(what, block, loop=loop)


def test_a_chain_is_a_graph_of_one_parent() -> None:
    block, what = talks(9), prepare(setup(*SPECS))
    assert block.turn is not None
    count = (block.turn > 1).astype(np.int64)
    chain = block.waiting(
        Lists(first=np.concatenate([[0], np.cumsum(count)]), values=block.turn[count > 0] - 1)
    )
    one, other = (simulate(what, b, compiled=True)[0] for b in (block, chain))
    assert one.tobytes() == other.tobytes()


@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 2**31), clients=st.integers(1, 4))
def test_a_client_begins_a_session_when_its_last_one_has_ended(seed: int, clients: int) -> None:
    block = graphs(seed, sessions=9)
    loop = ClosedLoop(concurrency=clients, think_s=0.25)
    records = simulate(prepare(setup(*SPECS)), block, compiled=True, loop=loop)[0]
    assert block.session is not None
    assert block.think_s is not None
    parents, free_s = parents_of(block), [0.0] * clients
    rows_of = [np.flatnonzero(block.session == s) for s in np.unique(block.session)]
    sessions = [([r for r in rows if not parents[r]], rows) for rows in rows_of]
    for roots, rows in sorted(sessions, key=lambda session: session[0][0]):
        begin_s = records.arrival_s[roots[0]]
        assert begin_s == min(free_s)  # in the file's order
        for r in roots[1:]:
            later_s = block.arrival_s[r] - block.arrival_s[roots[0]]
            assert records.arrival_s[r] == begin_s + later_s
        free_s[free_s.index(begin_s)] = records.finished_s[rows].max() + 0.25


def test_parents_outside_the_block_are_not_waited_for() -> None:
    block = graphs(2)
    rest = block.take(slice(len(block) // 2, None))
    records = simulate(prepare(setup(*SPECS)), rest, compiled=True)[0]
    assert len(records) == len(rest)
    assert (records.failure == 0).all()
