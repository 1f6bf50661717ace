"""Chips are cut anew from the requests that came: laws of the loop, whatever the policy wants."""

from __future__ import annotations

import functools
import itertools
import zlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from c2c.errors import SettingError
from c2c.policies import ByRegret
from c2c.serving import FAIL_NONE, Prepared, prepare
from c2c.simulator import RunStats, Simulation, build_machine, estimate, run_blocks
from c2c.simulator.port import SimulatorBackend
from c2c.workloads import RequestBlock, Workload
from tests.contracts.systems import models, prepared
from tests.contracts.test_serving import AS_DRAWN
from tests.contracts.watching import serve
from tests.simulator.worlds import random_requests, setup
from tests.tiers import tiered

SYSTEMS = ("c2cserve_plus", "c2cserve", "parked_3")
LAYOUTS = ("7x12gb", "4x24gb", "2x48gb", "1x96gb")


@functools.cache
def recutting(system: str) -> Prepared:
    """Return a system on two chips that looks after each eighth request."""
    what = prepared(system, "roomy").setup
    chip = replace(what.platform, mig=LAYOUTS[::-1], mig_more=("3g_4x1g",))
    policy = ByRegret(requests=8, before=4, margin=0.0)
    engines = replace(what.system.engines, residents=min(3, what.system.engines.residents))
    spec = replace(what.system, recut=policy, check_slo=False, engines=engines)
    return prepare(replace(what, platform=chip, mig=LAYOUTS[0], system=spec))


def any_estimate(
    prepared: Prepared, workload: Workload, last: int = 0, *, compiled: bool = True
) -> Mapping[str, Any]:
    """Return none or all in time, by the requests and the layouts alone."""
    (block,) = workload.blocks()
    text = repr((prepared.layouts.layouts, prepared.layouts.changes)).encode()
    for column in (block.arrival_s, block.model, block.prompt_tokens, block.output_tokens):
        text += column.tobytes()
    return {"attainment": {"both": float(zlib.crc32(text) % 2)}}


def simulated(what: Prepared, block: RequestBlock, *, compiled: bool) -> tuple[Any, RunStats]:
    simulation = Simulation.start(
        what, build_machine(what), compiled=compiled, buffer=256, estimate=any_estimate
    )
    parts: list[Any] = []
    stats = run_blocks(simulation, [block], parts.append)
    return np.sort(np.concatenate(parts), order="id").view(np.recarray), stats


@pytest.mark.parametrize("system", tiered(SYSTEMS, "c2cserve_plus"))
@settings(max_examples=3, deadline=None, phases=AS_DRAWN)
@given(load=st.tuples(st.integers(10, 40), st.sampled_from([0.5, 1.0]), st.integers(0, 99)))
def test_records_are_the_same_compiled_interpreted_and_over_the_port(
    system: str, load: tuple[int, float, int]
) -> None:
    n, rate, seed = load
    what, block = recutting(system), random_requests(n, models(system), rate, seed)
    backend = SimulatorBackend(what, build_machine(what), block, estimate=any_estimate)
    over_port, state, _ = serve(what, backend)  # one record a request, memory within its room
    interpreted, stats = simulated(what, block, compiled=False)
    compiled, compiled_stats = simulated(what, block, compiled=True)
    assert over_port.tobytes() == interpreted.tobytes() == compiled.tobytes()
    assert stats.changes == compiled_stats.changes
    event(f"{len(stats.changes)} changes")
    layouts = what.layouts.layouts
    size = len(what.layouts.slices)
    for chip in range(what.setup.superchips):
        rows = [row for row in stats.changes if row.chip == chip]
        for before, after in itertools.pairwise(rows):
            assert before.there_s <= after.begun_s
            assert before.change.setting.mig == after.change.before
        here = rows[-1].change if rows and rows[-1].there_s < np.inf else None
        at = what.layouts.choices.index(here.setting.mig) if here else 0
        if not rows or here:
            devices = state.device.service[chip * size : (chip + 1) * size]
            assert set(np.flatnonzero(devices == 0).tolist()) <= set(layouts[at])
    served = interpreted[interpreted.failure == FAIL_NONE]
    assert (served.finished_s <= stats.until_s[served.slice] + 1e-9).all()


def test_a_slice_that_comes_again_was_in_service_twice() -> None:
    what = recutting("c2cserve_plus")
    block = random_requests(120, models("c2cserve_plus"), 1.0, 3)
    _, stats = simulated(what, block, compiled=True)
    assert len(stats.changes) >= 4
    came = [d for row in stats.changes if row.chip == 0 for d in row.change.comes]
    assert len(came) > len(set(came))
    assert (stats.since_s <= stats.until_s).all()


def test_the_planners_estimate_cuts_a_chip_that_is_cut_wrong() -> None:
    # Prompts of 6,000 tokens take longer than their target on a seventh of the chip.
    what = setup("llama-3-8b", "llama-3-3b", mig="7x12gb", superchips=1)
    chip = replace(what.platform, mig=("1x96gb", "7x12gb"), mig_more=())
    plus = prepared("c2cserve_plus", "roomy").setup.system
    spec = replace(plus, recut=ByRegret(requests=20, before=20), check_slo=False)
    deployments = tuple(replace(d, ttft_slo_s=1.0, tpot_slo_s=1.0) for d in what.deployments)
    cut = prepare(replace(what, platform=chip, system=spec, deployments=deployments))
    n = 200
    block = RequestBlock(
        arrival_s=np.arange(n, dtype=np.float64),
        model=np.zeros(n, np.int32),
        prompt_tokens=np.full(n, 6000, np.int32),
        output_tokens=np.full(n, 4, np.int32),
    )
    simulation = Simulation.start(cut, build_machine(cut), estimate=estimate)
    parts: list[Any] = []
    stats = run_blocks(simulation, [block], parts.append)
    (row,) = stats.changes
    assert (row.change.before, row.change.setting.mig) == ("7x12gb", "1x96gb")
    records = np.sort(np.concatenate(parts), order="id")
    in_time = records["first_token_s"] - records["arrival_s"] <= 1.0
    after = records["arrival_s"] > row.there_s + 5.0
    assert in_time[after].all()
    assert not in_time[records["arrival_s"] < row.begun_s].any()
    alone = Simulation.start(cut, build_machine(cut))  # without an estimate nobody asks
    assert run_blocks(alone, [block], parts.append).changes == ()


def test_what_a_policy_of_layouts_does_not_go_with_is_refused() -> None:
    what = recutting("c2cserve_plus").setup
    with pytest.raises(SettingError, match=r"system.recut.policy='by_regret': expected layout_st"):
        replace(what, platform=replace(what.platform, partition=None))
    with pytest.raises(SettingError, match=r"system.recut.requests=0: expected a whole number"):
        ByRegret(requests=0).check("system.recut")
