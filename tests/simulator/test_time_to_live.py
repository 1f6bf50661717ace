"""A time to live of prefix blocks, which is longer while a tool runs."""

from __future__ import annotations

import math
from typing import Any

import pytest

from c2c.errors import SettingError
from c2c.policies import NoOption
from c2c.serving import Prepared, prepare
from c2c.serving.options.time_to_live import TimeToLive
from c2c.workloads import ClosedLoop, RequestBlock, build_workload, concatenate
from tests.contracts.test_any_order import _hold
from tests.simulator.test_prefix_cache import served
from tests.simulator.test_sessions import SPECS, parents_of
from tests.simulator.worlds import setup, simulate


def sessions(**changes: Any) -> RequestBlock:
    given = {
        "kind": "agents", "requests": 60, "models": 1, "rate_rps": 0.02, "turns": 5.0,
        "tool_s": 20.0, "tool_cv": 0.0, "subagent_share": 0.0, "max_total_tokens": 4000,
        "block_tokens": 32, "system_tokens": 0,
    }  # fmt: skip
    return concatenate(build_workload(given | changes, ("a", "b", "c"), 5).blocks())


def with_option(option: Any, **cache: Any) -> Prepared:
    groups = {f"prefix_cache__{name}": value for name, value in cache.items()}
    return prepare(setup(*SPECS, option=option, **groups))


@pytest.mark.parametrize("cache", [{"hbm": True}, {"host_bytes": 60e9}], ids=["hbm", "host"])
def test_a_turn_finds_its_context_while_its_time_lasts(cache: dict[str, Any]) -> None:
    """Sessions alone on a slice, tools of 20 s, looks each second."""
    block = sessions()
    for tool_s, is_there in ((25.0, True), (18.0, False)):
        records, _ = served(with_option(TimeToLive(tool_s=tool_s), **cache), block, parts=1)
        found = records.cached_hbm_tokens + records.cached_host_tokens
        later = [r for r, parents in enumerate(parents_of(block)) if parents]
        assert len(later) > 20
        for r in later:
            (before,) = parents_of(block)[r]
            known = records.prompt_tokens[before] + records.output_tokens[before] - 1
            assert found[r] == (known // 32 * 32 if is_there else 0)


def test_ended_sessions_leave_nothing() -> None:
    what = with_option(TimeToLive(idle_s=0.0), hbm=True, host_bytes=60e9)
    block = sessions()
    simulation = simulate(what, block, compiled=True)[2]
    pools = simulation.state.blocks.pool
    assert block.calls_tool is not None
    last = int(block.prompt_tokens[~block.calls_tool].max() + block.output_tokens.max())
    assert pools.rows.sum() <= 2 * (last // 32 + 1)  # at most the last session, in two memories
    kept = simulate(with_option(NoOption(), hbm=True, host_bytes=60e9), block, compiled=True)[2]
    assert kept.state.blocks.pool.rows.sum() > 10 * pools.rows.sum()


def test_blocks_without_end_are_those_without_the_option() -> None:
    block = sessions(rate_rps=2.0, models=3, subagent_share=0.3)
    never = TimeToLive(idle_s=math.inf, tool_s=math.inf)
    one, other = (
        served(with_option(option, hbm=True, host_bytes=1e9), block, parts=1)[0]
        for option in (never, NoOption())
    )
    assert one.tobytes() == other.tobytes()


def test_both_forms_of_the_loop_agree() -> None:
    block = sessions(rate_rps=2.0, models=3, subagent_share=0.3)
    what = with_option(TimeToLive(tool_s=15.0), hbm=True, host_bytes=1e9)
    one, other = (served(what, block, compiled=c, parts=1)[0] for c in (True, False))
    assert one.tobytes() == other.tobytes()


def test_any_order_of_events_holds_the_laws() -> None:
    what = with_option(TimeToLive(idle_s=0.5, tool_s=4.0), hbm=True, host_bytes=1e9)
    _hold(what, 3)


def test_agents_with_a_time_to_live_are_a_closed_loop_as_well() -> None:
    block = sessions(models=3, subagent_share=0.3)
    what = with_option(TimeToLive(), hbm=True)
    loop = ClosedLoop(concurrency=3)
    assert len(simulate(what, block, compiled=True, loop=loop)[0]) == len(block)


def test_without_a_prefix_cache_it_is_refused() -> None:
    with pytest.raises(SettingError, match=r"system\.option\.policy='time_to_live'"):
        with_option(TimeToLive())
