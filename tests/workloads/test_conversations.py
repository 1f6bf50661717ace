"""Conversations: what a turn's prompt holds, and which blocks it shares."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from c2c.errors import SettingError
from c2c.workloads import RequestBlock, build_workload, concatenate

CATALOG = ("a", "b", "c")


def made(seed: int = 0, **changes: Any) -> RequestBlock:
    given = {
        "kind": "conversations", "requests": 300, "models": 0, "max_total_tokens": 6000,
        "block_tokens": 64,
    }  # fmt: skip
    return concatenate(build_workload(given | changes, CATALOG, seed).blocks())


def keys_of(block: RequestBlock, r: int) -> list[int]:
    assert block.block_first is not None
    assert block.block_keys is not None
    keys: list[int] = block.block_keys[block.block_first[r] : block.block_first[r + 1]].tolist()
    return keys


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    turns=st.sampled_from([1.0, 2.5, 9.0]),
    system=st.sampled_from([0, 63, 64, 500]),
    size=st.sampled_from([1, 16, 64]),
)
def test_a_turn_holds_what_was_said_before(
    seed: int, turns: float, system: int, size: int
) -> None:  # fmt: skip
    block = made(seed, turns=turns, system_tokens=system, block_tokens=size, zipf_exponent=0.5)
    assert len(block) == 300
    assert block.session is not None
    assert block.turn is not None
    assert block.think_s is not None
    assert (np.diff(block.arrival_s) >= 0).all()
    prompt, output = block.prompt_tokens, block.output_tokens
    assert (prompt + output <= 6000).all()
    assert (np.isnan(block.think_s) == (block.turn == 1)).all()
    for session in np.unique(block.session):
        rows = np.flatnonzero(block.session == session)
        rows = rows[np.argsort(block.turn[rows])]
        assert block.turn[rows].tolist() == list(range(1, len(rows) + 1))
        assert len(set(block.model[rows].tolist())) == 1
        assert prompt[rows[0]] > system
        for before, after in pairwise(rows):
            assert prompt[after] > prompt[before] + output[before]
            known = keys_of(block, before)
            assert len(known) == (prompt[before] + output[before]) // size
            assert keys_of(block, after)[: len(known)] == known


def test_sessions_share_the_beginning_of_their_model_and_nothing_else() -> None:
    block = made(system_tokens=200, block_tokens=64, turns=2.0)
    assert block.session is not None
    of: dict[int, set[int]] = {}
    common: dict[int, set[int]] = {}
    for r in range(len(block)):
        keys = keys_of(block, r)
        common.setdefault(int(block.model[r]), set()).update(keys[:3])
        of.setdefault(int(block.session[r]), set()).update(keys[3:])
    assert [len(c) for c in common.values()] == [3] * len(common)
    assert len(set.union(*common.values())) == 3 * len(common) > 3
    assert len(set.union(*of.values())) == sum(len(keys) for keys in of.values())


def test_one_seed_gives_the_same_requests() -> None:
    one, other, third = made(4), made(4), made(5)
    assert one.arrival_s.tobytes() == other.arrival_s.tobytes()
    assert np.array_equal(one.block_keys, other.block_keys)  # type: ignore[arg-type]
    assert one.arrival_s.tobytes() != third.arrival_s.tobytes()


def test_turns_think_and_rate_are_what_was_asked_for() -> None:
    block = made(requests=40_000, turns=5.0, think_s=7.0, rate_rps=2.0, max_total_tokens=0)
    assert block.turn is not None
    assert block.think_s is not None
    sessions = (block.turn == 1).sum()
    assert len(block) / sessions == pytest.approx(5.0, rel=0.05)
    assert np.nanmean(block.think_s) == pytest.approx(7.0, rel=0.05)
    begun = block.arrival_s[block.turn == 1]
    assert sessions / (begun[-1] - begun[0]) == pytest.approx(0.4, rel=0.05)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"turns": 0.5}, "workload.turns"),
        ({"think_s": -1.0}, "workload.think_s"),
        ({"system_tokens": -1}, "workload.system_tokens"),
        ({"block_tokens": 0}, "workload.block_tokens"),
        ({"rate_rps": 0.0}, "workload.rate_rps"),
        ({"replicas": 2}, "workload.replicas"),
        ({"compression": 2.0}, "workload.compression"),
        ({"lengths": "trace"}, "workload.lengths"),
        ({"max_total_tokens": 10}, "workload.max_total_tokens"),
    ],
)
def test_settings_that_cannot_work_are_refused(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(SettingError, match=field):
        made(**changes)
