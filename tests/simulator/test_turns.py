"""The cost of a turn to another engine of a slice."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from c2c.policies import (
    Fixed,
    LeastLoaded,
    Quota,
    Resident,
    RoundRobin,
    Static,
    Stream,
    Swapped,
    WhileRoom,
)
from c2c.serving import ServingSetup, prepare
from c2c.serving.batches import turns
from c2c.serving.batches.batching import compose
from tests.simulator.worlds import random_requests, requests, setup, simulate

SWAPPING: dict[str, Any] = {
    "mig": "1x96gb", "engines__residents": 4, "turn": Quota(), "place": LeastLoaded(),
    "chunk": Fixed(512), "alpha": Static(0.0), "check_slo": False,
}  # fmt: skip


def swapping(*models: str, ahead: bool = True, tpot: float = 0.25) -> ServingSetup:
    return setup(*models, load=Swapped(start_s=0.0, ahead=ahead), tpot=tpot, **SWAPPING)


@pytest.mark.parametrize("turn_s", [0.05, 0.5])
def test_a_turn_is_paid_once_and_not_by_every_step_of_a_run(turn_s: float) -> None:
    """One decodes, another one comes for a single token, and the first goes on alone."""
    block = requests([0.0, 0.3], [0, 1], prompt=100, output=[80, 1])
    ends_s = {}
    for seconds in (0.0, turn_s):
        two = setup(
            "llama-3-3b", "llama-3-3b", mig="1x96gb", engines__residents=2, turn=RoundRobin(),
            engines__turn_s=seconds,
        )  # fmt: skip
        records, _, _ = simulate(prepare(two), block)
        ends_s[seconds] = records.finished_s[records.id == 0][0]
    turns = (ends_s[turn_s] - ends_s[0.0]) / turn_s
    assert turns == pytest.approx(round(turns), abs=1e-6)
    assert 2 <= round(turns) <= 3  # not one for each of 80 steps


def test_a_turn_taken_at_once_is_one_taken_step_by_step(monkeypatch: pytest.MonkeyPatch) -> None:
    block = random_requests(16, 3, 3.0, 1)
    what = swapping("llama-3-8b", "llama-3-3b", "llama-3-8b", tpot=0.02)  # turns of many steps
    at_once, totals, _ = simulate(what, block)
    monkeypatch.setattr(turns, "compose", lambda w, i, most, now_s: compose(w, i, 1, now_s))
    by_step, walked, _ = simulate(what, block)
    assert totals.runs.sum() < 0.5 * walked.runs.sum()
    for field in at_once.dtype.names:
        np.testing.assert_allclose(at_once[field], by_step[field], rtol=1e-9, err_msg=field)


def test_engines_that_swap_serve_one_model_as_a_slice_of_its_own_does() -> None:
    block = random_requests(40, 1, 2.0, 3)
    block.arrival_s[1:] += 30.0  # the first is for the start
    own = SWAPPING | {"engines__residents": 1, "load": Resident(start_s=0.0), "starts_active": True}
    del own["turn"]
    theirs, _, _ = simulate(setup("llama-3-8b", **own), block)
    ours, stats, _ = simulate(swapping("llama-3-8b"), block)
    assert stats.switches == 1
    assert theirs[1:].tobytes() == ours[1:].tobytes()
    assert ours[0].started_s > theirs[0].started_s == block.arrival_s[0]


@pytest.mark.parametrize("ahead", [False, True])
def test_weights_come_once_a_turn_and_not_before_anyone_asks(ahead: bool) -> None:
    """Two models in turn, ten seconds apart: nothing knows of the next request."""
    block = requests(np.arange(8) * 10.0, [0, 1] * 4, prompt=200, output=5)
    what = prepare(swapping("llama-3-8b", "llama-3-3b", ahead=ahead))
    records, stats, simulation = simulate(what, block)
    size = what.fleet.weight_bytes
    turned = size[block.model[2:]]  # the first of each model comes with its start
    copy_s = turned / simulation.machine.link_cap[0]
    alone, _, _ = simulate(setup("llama-3-8b", "llama-3-3b", **SWAPPING | {
        "mig": "2x48gb", "engines__residents": 1, "turn": RoundRobin(),
        "load": Resident(start_s=0.0), "starts_active": True}), block)  # fmt: skip
    assert stats.chip_link_bytes[0] == pytest.approx(size.sum() + turned.sum())
    assert stats.instance_link_bytes.sum() == pytest.approx(stats.chip_link_bytes[0])
    took_s = (records.first_token_s - records.started_s)[2:]
    assert (took_s > copy_s).all()
    assert (took_s < copy_s + 1.1 * (alone.first_token_s - alone.started_s)[2:]).all()


def test_weights_that_come_ahead_save_time_and_no_bytes() -> None:
    """Several decode in turn: the next one is known."""
    block = requests([0.0, 0.0, 0.0], [0, 1, 2], prompt=100, output=60)
    got = {}
    for ahead in (False, True):
        what = swapping("llama-3-8b", "llama-3-3b", "llama-3-8b", ahead=ahead)
        records, stats, _ = simulate(what, block)
        turned = stats.chip_link_bytes[0] / stats.runs.sum()
        got[ahead] = float(records.finished_s.max()), turned
        assert stats.instance_link_bytes.sum() == pytest.approx(stats.chip_link_bytes[0])
    assert got[True][0] < got[False][0]


def test_what_a_turn_streams_stays_for_the_steps_after_it() -> None:
    """And only the engines that ran last have weights in HBM."""
    block = requests([0.0, 5.0, 10.0, 15.0], [0, 1, 2, 0], prompt=100, output=40)
    moved = {}
    for engines in (0, 2):
        keep = WhileRoom(engines=engines)
        what = setup("llama-3-3b", "llama-3-3b", "llama-3-3b",
                     **SWAPPING | {"load": Stream(start_s=0.0), "keep": keep})  # fmt: skip
        _, stats, simulation = simulate(what, block)
        moved[engines] = stats.chip_link_bytes[0]
        with_weights = np.count_nonzero(np.asarray(simulation.state.instance)["kept"])
        assert with_weights == (engines or 3)
    # the fourth finds its weights, or reads them once more
    assert moved[2] == pytest.approx(moved[0] * 4 / 3, rel=1e-6)
