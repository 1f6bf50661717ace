"""Engines that take turns over one room in HBM, starts at ticks, instances that do not live on."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from c2c.errors import SettingError
from c2c.models import load_spec, weight_bytes
from c2c.policies import FirstIdle, Fixed, LeastLoaded, Quota, Resident, Static, Stream, Swapped
from c2c.serving import FAIL_MEMORY, FAIL_NONE, ServingSetup, prepare
from tests.simulator.worlds import random_requests, requests, setup, simulate
from tests.tiers import tiered

COMMON: dict[str, Any] = {"chunk": Fixed(512), "alpha": Static(0.0), "check_slo": False}
SHARED = COMMON | {
    "load": Swapped(), "turn": Quota(), "place": LeastLoaded(), "engines__residents": 4,
}  # fmt: skip
OWN = COMMON | {"load": Resident(start_s=0.0), "place": FirstIdle()}
FIELDS = ("first_token_s", "finished_s", "link_bytes", "hbm_bytes", "chunks")


def shared(*models: str, **changes: Any) -> ServingSetup:
    return setup(*models, mig="1x96gb", **(SHARED | changes))


def test_one_engine_is_a_gpu_of_its_own_to_the_byte() -> None:
    block = random_requests(30, 1, 4.0, 0)
    ours, _, _ = simulate(shared("llama-3-8b"), block)
    theirs, _, _ = simulate(setup("llama-3-8b", mig="1x96gb", **OWN), block)
    for field in FIELDS:
        np.testing.assert_array_equal(ours[field], theirs[field], err_msg=field)


@pytest.mark.parametrize("ahead", [False, True])
def test_a_turn_that_nobody_asked_for_before_takes_the_weights_over_the_link(ahead: bool) -> None:
    what = shared("llama-3-3b", "llama-3-8b", load=Swapped(ahead=ahead))
    # Both engines exist when the last request comes; none waited for it, so nothing came ahead.
    block = requests([0.0, 1.0, 5.0, 5.5], model=[0, 1, 0, 1], prompt=10, output=1)
    records, _, simulation = simulate(what, block, timeline_rows=100)
    own, _, _ = simulate(setup("llama-3-3b", "llama-3-8b", mig="2x48gb", **OWN), block)
    assert own.finished_s[0] > 0
    copy_s = weight_bytes(load_spec("llama-3-8b")) / simulation.machine.link_cap[0]
    alone_s = records.first_token_s[3] - 5.5
    step_s = float(simulation.timeline().end_s[-1] - simulation.timeline().start_s[-1])
    assert alone_s == pytest.approx(step_s)
    assert copy_s < alone_s < copy_s + 0.05
    assert records.link_bytes[3] == pytest.approx(weight_bytes(load_spec("llama-3-8b")))


def test_decodes_of_several_engines_share_the_time_as_their_targets_ask() -> None:
    made = shared("llama-3-3b", "llama-3-8b", load=Swapped(ahead=False))
    targets = tuple(
        replace(d, tpot_slo_s=t) for d, t in zip(made.deployments, (0.05, 0.2), strict=True)
    )
    block = requests([0.0, 0.0], model=[0, 1], prompt=10, output=400)
    records, _, _ = simulate(replace(made, deployments=targets), block)
    # while both decode, one engine gets four times the tokens of the other
    first = int(records.finished_s.argmin())
    tpot = (records.finished_s[first] - records.first_token_s[first]) / 399
    assert first == 0
    assert tpot < 0.1
    equal, _, _ = simulate(made, block)
    assert equal.finished_s[0] > records.finished_s[0]


def test_a_model_that_fits_no_slice_fails_and_the_rest_goes_on() -> None:
    models = ("llama-3-8b", "llama-3-70b")
    block = requests([0.0, 0.1, 0.2, 0.3], model=[0, 1, 0, 1], prompt=100, output=10)
    for system in (SHARED, OWN):
        with pytest.raises(SettingError, match=r"^catalog\.llama-3-70b-1="):
            prepare(setup(*models, mig="1x96gb", **system))
        records, stats, _ = simulate(setup(*models, mig="1x96gb", on_oom="fail", **system), block)
        assert records.failure.tolist() == [FAIL_NONE, FAIL_MEMORY] * 2
        assert (stats.finished, stats.failed) == (2, 2)
    streamed = setup(*models, mig="1x96gb", load=Stream(), **COMMON)
    records, stats, _ = simulate(streamed, block)
    assert stats.failed == 0


@pytest.mark.parametrize("kv_host_bytes", tiered([0.0, 20e9], 20e9))
@pytest.mark.parametrize("engine_bytes", [25e9, 70e9])
def test_more_engines_than_memory_has_room_for_wait_for_each_other(
    engine_bytes: float, kv_host_bytes: float
) -> None:
    models = ("llama-3-8b", "llama-3-3b", "llama-3-8b", "llama-3-3b")
    what = shared(*models, engines__bytes=engine_bytes, engines__kv_host_bytes=kv_host_bytes)
    block = random_requests(30, 4, 20.0, 5)
    records, stats, simulation = simulate(what, block)
    assert (stats.finished, stats.failed) == (30, 0)
    assert np.isfinite(records.link_bytes).all()
    assert simulation.state.device.kv_bytes.tolist() == [0.0]


def test_one_slice_each_is_refused_where_slices_are_short() -> None:
    models = ("llama-3-3b", "llama-3-8b")
    system = OWN | {"starts_active": True, "one_each": True}
    _, stats, _ = simulate(
        setup(*models, mig="2x48gb", **system), requests([0.0, 0.1], model=[0, 1])
    )
    assert (stats.switches, stats.evictions) == (0, 0)
    with pytest.raises(SettingError, match=r"^system\.one_each="):
        prepare(setup(*models, mig="1x96gb", **system))
