"""Turns of a trace that wait for the answer before them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from c2c.errors import DataError, SettingError
from c2c.workloads import RequestBlock, Workload, build_workload, concatenate
from tests.simulator.worlds import setup, simulate
from tests.workloads.traces import stored


def write(folder: Path, rows: list[dict[str, Any]]) -> Path:
    return stored(folder / "trace.jsonl", "".join(json.dumps(row) + "\n" for row in rows))


def turn(at_s: float, session: Any, number: int, **more: Any) -> dict[str, Any]:
    return {"arrival_s": at_s, "prompt_tokens": 40, "output_tokens": 11, "session_id": session,
            "turn": number} | more  # fmt: skip


def chat(at_s: float, own: str, parent: Any, **more: Any) -> dict[str, Any]:
    return {"timestamp": at_s, "input_length": 40, "output_length": 10, "chat_id": own,
            "parent_chat_id": parent} | more  # fmt: skip


def workload(path: Path, **changes: Any) -> Workload:
    given = {"kind": "trace", "path": str(path), "turns_wait": True}
    return build_workload(given | changes, ("m",), 0)


def block_of(path: Path, **changes: Any) -> RequestBlock:
    return concatenate(workload(path, **changes).blocks())


ROWS = [turn(0.0, 1, 1), turn(1.0, 2, 1), turn(4.0, 1, 2), turn(4.5, None, 0), turn(9.5, 1, 3)]


def test_the_time_to_think_is_the_gap_in_the_file(tmp_path: Path) -> None:
    found = block_of(write(tmp_path, ROWS)).think_s
    np.testing.assert_array_equal(found, [np.nan, np.nan, 4.0, np.nan, 5.5])
    assert block_of(write(tmp_path, ROWS), turns_wait=False).think_s is None
    # sessions closer to one another, people as fast as they were
    np.testing.assert_array_equal(block_of(write(tmp_path, ROWS), compression=4.0).think_s, found)


def test_measured_answers_are_no_time_to_think(tmp_path: Path) -> None:
    took = {"measured_ttft_s": 0.5, "measured_tpot_s": 0.1}  # an answer of 11 tokens: 1.5 s
    rows = [row | took for row in ROWS[:3]] + [turn(4.6, 1, 3)]
    np.testing.assert_allclose(
        block_of(write(tmp_path, rows)).think_s, [np.nan, np.nan, 2.5, 0.0], atol=1e-12
    )


@pytest.mark.parametrize(
    ("rows", "think_s"),
    [
        ([chat(0, "a", -1), chat(2, "b", "a"), chat(3, "c", None), chat(9, "d", "b")],
         [np.nan, 2.0, np.nan, 7.0]),
        # Turns without their parent may begin sessions.
        ([chat(0, "a", -1), chat(1, "b", "gone"), chat(5, "c", "b")], [np.nan, np.nan, 4.0]),
    ],
)  # fmt: skip
def test_parents_make_sessions(tmp_path: Path, rows: Any, think_s: list[float]) -> None:
    found = block_of(write(tmp_path, rows), on_bad_row="skip").think_s
    np.testing.assert_array_equal(found, think_s)


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 2**31))
def test_a_turn_comes_after_the_simulated_answer(
    tmp_path_factory: pytest.TempPathFactory, seed: int
) -> None:
    g = np.random.default_rng(seed)
    counts: dict[int, int] = {}
    rows = []
    for at in np.sort(g.uniform(0.0, 20.0, 40)).tolist():
        session = int(g.integers(0, 8))
        counts[session] = counts.get(session, 0) + 1
        tokens = {"prompt_tokens": int(g.integers(1, 900)), "output_tokens": int(g.integers(1, 90))}
        rows.append(turn(at, session, counts[session], **tokens))
    block = block_of(write(tmp_path_factory.mktemp("turns"), rows))
    records, _, _ = simulate(setup("llama-3-8b"), block, compiled=True)
    assert len(records) == 40
    assert block.session is not None
    assert block.think_s is not None
    for session in np.unique(block.session):
        (mine,) = np.nonzero(block.session == session)
        assert records.arrival_s[mine[0]] == block.arrival_s[mine[0]]
        wanted = records.finished_s[mine[:-1]] + block.think_s[mine[1:]]
        np.testing.assert_array_equal(records.arrival_s[mine[1:]], wanted)


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        ([{k: v for k, v in r.items() if k not in ("session_id", "turn")} for r in ROWS],
         "no request has a session"),
        ([*ROWS, turn(10.0, None, 3)], "turn 3 at 10 s belongs to no session"),
        ([turn(0.0, 1, 2), turn(1.0, 1, 1)], "turn 1 at 1 s comes after turn 2"),
        ([chat(0, "a", -1), chat(1, "b", "gone")], "parent_chat_id=gone is the id of no earlier"),
        ([chat(0, "a", "b"), chat(1, "b", "a")], "parent_chat_id=b is the id of no earlier"),
        ([chat(0, "a", "a")], "parent_chat_id=a is the id of no earlier"),
    ],
    ids=["no_sessions", "no_session", "order", "missing", "circle", "own"],
)  # fmt: skip
def test_wrong_sessions_are_refused(tmp_path: Path, rows: list[Any], says: str) -> None:
    path = write(tmp_path, rows)
    with pytest.raises(DataError, match=says):
        workload(path)
    assert len(block_of(path, turns_wait=False)) == len(rows)


@pytest.mark.parametrize(
    ("changes", "field"),
    [({"replicas": 2}, "workload.replicas=2"), ({"kind": "poisson"}, "workload.turns_wait=True")],
)
def test_settings_that_do_not_go_together_are_refused(
    tmp_path: Path, changes: dict[str, Any], field: str
) -> None:
    with pytest.raises(SettingError, match=field):
        workload(write(tmp_path, ROWS), **changes)
