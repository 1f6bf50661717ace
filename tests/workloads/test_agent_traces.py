"""Public traces of agents: Weka's sessions and Dynamo's graphs, made by hand after their fields."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from c2c.errors import DataError
from c2c.workloads import (
    ClosedLoop,
    RequestBlock,
    Workload,
    build_workload,
    concatenate,
    doubts,
    write_trace,
)
from tests.simulator.test_sessions import parents_of
from tests.simulator.worlds import setup, simulate


def call(t: float, took_s: float, hashes: list[int], out: int = 20, **more: Any) -> dict[str, Any]:
    tokens = {"in": 64 * len(hashes) + 5, "out": out}
    return {
        "t": t, "type": "n", "model": "m", "hash_ids": hashes, "api_time": took_s, "stop": "",
    } | (tokens | more)  # fmt: skip


def subagent(t: float, duration_ms: int | None, *requests: dict[str, Any]) -> dict[str, Any]:
    return {
        "t": t, "type": "subagent", "agent_id": "agent_001", "subagent_type": "Explore",
        "duration_ms": duration_ms, "status": "completed", "requests": list(requests),
        "models": ["m"],
    }  # fmt: skip


def session(name: str, *requests: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"id": name, "models": ["m"], "block_size": 64, "hash_id_scope": "local",
            "requests": list(requests)} | more  # fmt: skip


# The main agent calls a tool, starts two sub-agents at 10 s, and goes on at 30 s after the first.
WEKA = session(
    "a",
    call(0.0, 2.0, [1, 2], out=90, stop="tool_use"),
    call(5.0, 3.0, [1, 2, 3, 4], stop="tool_use"),
    subagent(
        10.0, 15_000, call(10.5, 4.0, [9]), call(0.0 + 16.0, 5.0, [9, 10], type="s", ttft=0.2)
    ),
    subagent(11.0, None, call(0.5, 40.0, [9, 11])),
    call(30.0, 1.0, [1, 2, 3, 4, 5]),
    call(60.0, 1.0, [1, 2, 3, 4, 5, 6]),
)


def write(folder: Path, records: list[Any], *, lines: bool = True) -> Path:
    path = folder / ("trace.jsonl" if lines else "trace.json")
    text = "".join(json.dumps(one) + "\n" for one in records) if lines else json.dumps(records)
    path.write_text(text, "utf-8")
    return path


def workload(path: Path, **changes: Any) -> Workload:
    given = {
        "kind": "trace", "path": str(path), "turns_wait": True, "assignment": "popularity_rank",
    }  # fmt: skip
    return build_workload(given | changes, ("m",), 0)


def block_of(path: Path, **changes: Any) -> RequestBlock:
    return concatenate(workload(path, **changes).blocks())


def test_wekas_sessions_are_graphs(tmp_path: Path) -> None:
    path = write(tmp_path, [WEKA, session("b", call(1.0, 1.0, [1, 2]))])
    block = block_of(path)
    np.testing.assert_allclose(block.arrival_s, [0, 1, 5, 10.5, 11.5, 16, 30, 60])
    assert block.session is not None
    assert block.session.tolist() == [0, 1, 0, 0, 0, 0, 0, 0]
    # 11.5 + 40 s is after 30 s: only the last request waits for the second sub-agent.
    assert parents_of(block) == [[], [], [0], [2], [2], [3], [2, 5], [4, 6]]
    assert block.think_s is not None
    np.testing.assert_allclose(block.think_s, [np.nan, np.nan, 3, 2.5, 3.5, 1.5, 9, 8.5], atol=1e-9)
    assert block.calls_tool is not None
    assert np.flatnonzero(block.calls_tool).tolist() == [0, 2]


def test_answers_are_found_in_the_prompt_that_continues_them(tmp_path: Path) -> None:
    """Whole blocks of 133 + 90 tokens: three; hashes of sessions are their own."""
    block = block_of(write(tmp_path, [WEKA, session("b", call(1.0, 1.0, [1, 2]))]))
    keys = block.hashes()
    assert keys is not None
    own = [keys.values[slice(*keys.first[r:][:2])].tolist() for r in range(len(block))]
    assert [len(one) for one in own] == [3, 2, 4, 1, 2, 2, 5, 6]
    assert own[0] == own[2][:3]
    assert not set(own[1]) & set(own[0])
    assert own[3][0] == own[4][0]  # sub-agents share their system prompt


def test_a_written_trace_is_read_as_it_was(tmp_path: Path) -> None:
    made = workload(write(tmp_path, [WEKA, session("b", call(1.0, 1.0, [1, 2]))]))
    write_trace(tmp_path / "again.parquet", made)
    one, other = concatenate(made.blocks()), block_of(tmp_path / "again.parquet")
    records = [
        simulate(setup("llama-3-8b"), block, compiled=True)[0].tobytes() for block in (one, other)
    ]
    assert records[0] == records[1]
    assert parents_of(one) == parents_of(other)
    for name in ("think_s", "calls_tool", "block_first"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name))


def test_agents_run_sessions_one_after_another(tmp_path: Path) -> None:
    sessions = [WEKA | {"id": str(k)} for k in range(5)]
    made = workload(write(tmp_path, sessions, lines=False), agents=2)
    assert made.loop == ClosedLoop(concurrency=2)
    block = concatenate(made.blocks())
    records = simulate(setup("llama-3-8b"), block, compiled=True, loop=made.loop)[0]
    assert block.session is not None
    begins, ends = (
        np.array([f(x[block.session == s]) for s in range(5)])
        for f, x in ((np.min, records.arrival_s), (np.max, records.finished_s))
    )
    assert begins[:2].tolist() == [0, 0]
    assert sorted(begins[2:].tolist()) == sorted(ends)[:3]


def row(name: str, **more: Any) -> dict[str, Any]:
    return {"request_id": name, "session_id": "root", "input_length": 600, "output_length": 5,
            "hash_ids": [1, 2]} | more  # fmt: skip


GRAPH = [
    row("p1", timestamp=1000.0, prefix_reset=True),
    row("c1", session_id="child", wait_for=["p1"], delay=100.0),
    row("c2", session_id="child2", wait_for=["p1"], timestamp=1300.0, delay=100.0),
    row("p2", wait_for=["p1", "c1", "c2"], delay=200.0, tool_wait_ms=300.0),
    row("q", session_id="other", timestamp=1200.0),
]


def test_dynamos_rows_are_graphs(tmp_path: Path) -> None:
    block = block_of(write(tmp_path, GRAPH), block_tokens=512)
    assert block.session is not None
    np.testing.assert_allclose(block.arrival_s, [1, 1.1, 1.2, 1.3, 1.8], atol=1e-9)
    assert (block.session == block.session[0]).tolist() == [True, True, False, True, True]
    assert parents_of(block) == [[], [0], [], [0], [0, 1, 3]]
    assert block.think_s is not None
    np.testing.assert_allclose(block.think_s, [np.nan, 0.1, np.nan, 0.1, 0.5], atol=1e-9)
    assert block.calls_tool is not None
    assert block.calls_tool.tolist() == [True, False, False, False, False]


def test_without_waiting_requests_come_at_their_times_and_a_line_says_so(tmp_path: Path) -> None:
    made = workload(write(tmp_path, [WEKA]), turns_wait=False)
    assert any("workload.turns_wait=true" in line for line in doubts(made))
    block = concatenate(made.blocks())
    records = simulate(setup("llama-3-8b"), block, compiled=True)[0]
    assert records.arrival_s.tolist() == block.arrival_s.tolist()


@pytest.mark.parametrize(
    ("records", "says"),
    [
        ([WEKA, WEKA | {"block_size": 32}], "block_size is 32, 64: one whole number"),
        ([WEKA | {"block_size": 0}], "block_size is 0"),
        ([session("a", call(0, 1, [-1]))], r"hash_ids of a are not all within"),
        ([session("a", {"type": "n", "in": 4, "out": 4})], "lacks a field .*'t'"),
        ([session("a", call(float("nan"), 1, [1]))], "a time of a is not finite"),
        ([session("a", call(0, 1, [1], out=0))], "zero_output_tokens 1"),
        ([row("a", timestamp=1, wait_for=["z"])], "wait_for=z is the id of no request"),
        ([row("a", timestamp=1, wait_for=["b"]), row("b", wait_for=["a"])], "request_id=a waits"),
        ([row("a", timestamp=1, wait_for=["a"])], "request_id=a waits for itself"),
        ([row("a", timestamp=1, wait_for=[]), row("a", timestamp=2)], "request_id=a occurs more"),
        ([row("a", wait_for=[])], "timestamp of a"),
    ],
)  # fmt: skip
def test_what_is_no_graph_is_refused_by_name(tmp_path: Path, records: Any, says: str) -> None:
    with pytest.raises(DataError, match=says):
        block_of(write(tmp_path, records), block_tokens=0 if is_weka(records) else 512)


def is_weka(records: list[Any]) -> bool:
    return "requests" in records[0]
