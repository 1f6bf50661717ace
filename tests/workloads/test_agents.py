"""Agents: contexts that grow, tools, joined sub-agents, blocks that are found again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from c2c.errors import SettingError
from c2c.workloads import ClosedLoop, RequestBlock, build_workload, concatenate, write_trace
from tests.simulator.test_sessions import parents_of
from tests.workloads.test_conversations import keys_of


def made(seed: int = 0, **changes: Any) -> RequestBlock:
    given = {
        "kind": "agents", "requests": 300, "models": 0, "max_total_tokens": 20_000, "turns": 6.0,
        "subagent_share": 0.3, "subagent_turns": 3.0, "system_tokens": 256, "block_tokens": 64,
    }  # fmt: skip
    return concatenate(build_workload(given | changes, ("a", "b"), seed).blocks())


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 2**31), share=st.sampled_from([0.0, 0.3, 1.0]))
def test_a_prompt_begins_with_all_that_its_context_said(seed: int, share: float) -> None:
    block = made(seed, subagent_share=share, block_tokens=1)
    assert len(block) == 300
    assert block.calls_tool is not None
    children = np.zeros(len(block), int)
    for r, parents in enumerate(parents_of(block)):
        assert all(p < r for p in parents)
        children[parents] += 1
        if not parents:
            continue
        # The first parent's context goes on, or it started a sub-agent with one of its own.
        before, now = keys_of(block, parents[0]), keys_of(block, r)
        if now[: len(before)] == before:
            answers = int(block.output_tokens[parents].sum())
            assert block.prompt_tokens[r] > block.prompt_tokens[parents[0]] + answers
            assert block.calls_tool[parents[0]]
        else:
            assert len(parents) == 1
            assert now[:256] == before[:256]
            assert now[256] != before[256]
    # An answer without a further turn of its context calls no tool; without a child it never does.
    assert not block.calls_tool[children == 0].any()
    assert (share > 0) == (max(map(len, parents_of(block))) > 1)


def test_means_are_those_of_the_settings() -> None:
    block = made(requests=60_000, turns=9.0, subagent_share=0.0, max_total_tokens=0, tool_s=3.0)
    assert block.turn is not None
    assert block.think_s is not None
    assert len(block) / (block.turn == 1).sum() == pytest.approx(9.0, rel=0.05)
    assert np.nanmean(block.think_s) == pytest.approx(3.0, rel=0.05)
    assert np.nanstd(block.think_s) == pytest.approx(6.0, rel=0.2)
    constant = made(tool_cv=0.0, tool_s=3.0, subagent_share=0.0).think_s
    assert constant is not None
    assert np.nanmin(constant) == pytest.approx(3.0)
    assert np.nanmax(constant) == pytest.approx(3.0)


def test_clients_are_agents(tmp_path: Path) -> None:
    given = {
        "kind": "agents", "requests": 50, "models": 1, "agents": 4, "ramp_s": 8.0,
        "block_tokens": 64,
    }  # fmt: skip
    found = build_workload(given, ("a",), 0)
    assert found.loop == ClosedLoop(concurrency=4, ramp_s=8.0)
    assert write_trace(tmp_path / "agents.parquet", found) == 50
    assert build_workload(given | {"agents": 0, "ramp_s": 0.0}, ("a",), 0).loop is None


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"max_total_tokens": 200}, "workload.max_total_tokens"),
        ({"subagents": 0.5}, "workload.subagents"),
        ({"subagent_share": 1.5}, "workload.subagent_share"),
        ({"requests": 6_000_000}, "workload.requests"),
        ({"ramp_s": 3.0}, "workload.ramp_s"),
        ({"kind": "poisson", "agents": 2}, "workload"),
        ({"kind": "trace", "path": "x", "agents": 2, "requests": 350_000}, "workload"),
    ],
)
def test_wrong_settings_are_named(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(SettingError, match=field):
        made(**changes)
