"""Misses from a table, for long traces: as the exact walk has them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from c2c.config import run_totals
from c2c.errors import SettingError
from c2c.policies import ActivationTrace, AllExperts, ByProbability, ByScore, ExpertMap, NoPrefetch
from c2c.serving import ServingSetup, prepare
from c2c.simulator import RunStats
from c2c.simulator.expert_cache.miss_table import DECODES, MissTable, steps_missing
from c2c.workloads import RequestBlock, Router
from tests.contracts.recorded import Recorded
from tests.contracts.watching import serve
from tests.simulator.test_experts import world
from tests.simulator.worlds import requests, setup, simulate, with_settings
from tests.tiers import tiered

G = np.random.default_rng(3)
BLOCK = requests(
    np.sort(G.uniform(0.0, 60.0, 120)),
    prompt=G.integers(1, 300, 120),
    output=G.integers(1, 300, 120),
)


def walked_and_from_a_table(exact: ServingSetup, block: RequestBlock) -> list[tuple[Any, RunStats]]:
    """Return records and totals of either kind of misses, over a slow link."""
    link = replace(exact.platform.link, measured_gbps=8.0, datasheet_gbps=8.0)
    exact = replace(exact, platform=replace(exact.platform, link=link))
    table = replace(exact, system=with_settings(exact.system, expert_cache__misses="table"))
    return [simulate(what, block, compiled=True)[:2] for what in (exact, table)]


@pytest.mark.parametrize(
    ("prefetch", "experts", "router"),
    tiered(
        [
            (NoPrefetch(), ByScore(), Router(skew=0.6, locality=0.5)),
            (ActivationTrace(capacity=20), ByScore(), Router(skew=1.2, topics=6)),
            (ExpertMap(capacity=20, distance=1), ByProbability(), Router(skew=1.0, locality=0.9)),
        ],
        (ExpertMap(capacity=20, distance=1), ByProbability(), Router(skew=1.0, locality=0.9)),
    ),
)
def test_a_table_has_the_latency_and_the_bytes_of_the_exact_walk(
    prefetch: Any, experts: Any, router: Router
) -> None:
    """The link is slow, so that misses take much of a step."""
    exact = world(40e6, router=router, experts=experts, prefetch=prefetch)
    (walked, stats), (found, again) = walked_and_from_a_table(exact, BLOCK)
    assert again.runs.sum() < 2.1 * len(BLOCK) < 0.1 * stats.runs.sum()
    assert stats.expert_wait_s > 0.3 * stats.busy_s.sum()
    for first, last in (("started_s", "finished_s"), ("started_s", "first_token_s")):
        exact_s, ours_s = ((r[last] - r[first]).mean() for r in (walked, found))
        assert ours_s == pytest.approx(exact_s, rel=0.03)
    assert (found.finished_s - found.arrival_s).mean() == pytest.approx(
        (walked.finished_s - walked.arrival_s).mean(), rel=0.03
    )
    assert again.expert_bytes == pytest.approx(stats.expert_bytes, rel=0.1)
    assert again.chip_link_bytes.sum() == pytest.approx(stats.chip_link_bytes.sum(), rel=0.1)


def test_a_run_in_pieces_misses_what_it_misses_whole() -> None:
    what = prepare(setup("llama-3-3b"))
    state, so_far = what.new_serving(), np.cumsum(G.random((1, 2, DECODES + 1, 2)), axis=2)
    table = MissTable(True, so_far, np.zeros((1, 2, 2, 2)))
    state.request.prompt[0] = 10
    state.decoding[0, 0] = 0, 50, 10 + 51  # its first token comes with its prompt

    def missed(at: int, steps: int) -> Any:
        state.plan[0].instance, state.plan[0].steps, state.instance[0].decode_clock = 0, steps, at
        return steps * np.array(steps_missing(table, what.fleet, state, 0, 1))

    np.testing.assert_allclose(missed(0, 20) + missed(20, 30), missed(0, 50))
    np.testing.assert_allclose(missed(20, 30), so_far[0, 1, 50] - so_far[0, 1, 20])


def test_requests_after_a_start_find_the_traces_stored_before_it() -> None:
    """Two models by turns: each request's cache is that of a start, what is stored stays."""
    block = requests(
        np.arange(80) * 40.0, np.arange(80) % 2, prompt=G.integers(1, 300, 80),
        output=G.integers(1, 300, 80),
    )  # fmt: skip
    prefetch = ActivationTrace(capacity=20)
    exact = world(40e6, Router(skew=1.2, topics=6), models=2, experts=ByScore(), prefetch=prefetch)
    (walked, stats), (found, again) = walked_and_from_a_table(exact, block)
    assert stats.switches == again.switches == 80
    assert again.expert_bytes == pytest.approx(stats.expert_bytes, rel=0.1)
    assert (found.finished_s - found.started_s).mean() == pytest.approx(
        (walked.finished_s - walked.started_s).mean(), rel=0.03
    )


@pytest.mark.slow
def test_the_table_is_read_alike_over_the_port_interpreted_and_compiled() -> None:
    what = prepare(world(40e6, experts=ByScore(), expert_cache__misses="table"))
    block = requests(np.linspace(0.0, 0.2, 30), prompt=G.integers(1, 900, 30), output=7)
    over_port, _, _ = serve(what, Recorded(what, block))
    interpreted, _, _ = simulate(what, block)
    compiled, stats, _ = simulate(what, block, compiled=True)
    assert over_port.tobytes() == interpreted.tobytes() == compiled.tobytes()
    # waits and the host's work are one in the table, so that the summary calls them neither
    told = run_totals(what, stats)["experts"]
    assert told == {"fetched_bytes": stats.expert_bytes, "longer_s": stats.expert_wait_s}
    assert told["longer_s"] > 0.0


@pytest.mark.parametrize(
    "changes",
    [
        {"expert_cache__misses": "guessed"},
        {"expert_cache__misses": "table", "max_batch": 2},
        {"expert_cache__misses": "table", "experts": AllExperts()},
    ],
)
def test_what_no_table_can_say_is_refused_by_name(changes: dict[str, Any]) -> None:
    with pytest.raises(SettingError, match=r"system\.expert_cache\.misses"):
        world(**({"experts": ByScore()} | changes))


def test_a_context_without_room_for_the_table_is_refused() -> None:
    what = world(40e6, experts=ByScore(), expert_cache__misses="table")
    (one,) = what.deployments
    short = replace(one, spec=replace(one.spec, max_position=100))
    with pytest.raises(SettingError, match=r"system\.expert_cache\.misses.*exact where"):
        simulate(prepare(replace(what, deployments=(short,))), requests([0.0]))


def test_unlike_slices_are_refused() -> None:
    what = world(40e6, experts=ByScore(), expert_cache__misses="table")
    with pytest.raises(SettingError, match=r"system\.expert_cache\.misses.*unlike"):
        prepare(replace(what, mig="3g_4x1g"))
    assert not prepare(setup("llama-3-3b")).fleet.folds_experts
