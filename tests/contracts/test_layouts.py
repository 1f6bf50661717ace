"""A chip's layout changes while it serves: no request is lost, and nothing runs on what is gone."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from c2c.errors import BackendError, SettingError
from c2c.policies import weights_in
from c2c.serving import FAIL_DEVICE, FAIL_NONE, LayoutChange, Prepared, prepare
from c2c.serving.loop import step
from c2c.serving.port import (
    Arrival,
    ChangeLayout,
    DeviceLost,
    LayoutChanged,
    Load,
    Ready,
    Recut,
    RunSteps,
    SetAside,
    StepEnd,
    Unload,
    new_report,
)
from c2c.simulator import build_machine
from c2c.simulator.layouts import LayoutSchedule
from c2c.simulator.port import SimulatorBackend
from tests.contracts.stubborn import StubbornBackend
from tests.contracts.systems import models, prepared
from tests.contracts.test_serving import AS_DRAWN, loads
from tests.contracts.watching import serve
from tests.simulator.worlds import random_requests, setup, simulate
from tests.tiers import tiered

SYSTEMS = ("c2cserve", "c2cserve_plus", "serverlessllm", "graph_start", "parked_3", "by_priority")


@functools.cache
def changing(system: str) -> Prepared:
    """Return a system on two chips whose layout changes three times, the second one later."""
    what = prepared(system, "roomy").setup
    streams = weights_in(what.system.load) != "hbm"
    first, other = ("7x12gb", "3g_4x1g") if streams else ("4x24gb", "1x96gb")
    changes = (
        LayoutChange(at_s=0.3, mig=other, stagger_s=0.4),
        LayoutChange(at_s=2.0, mig=first, drain=False),
        LayoutChange(at_s=9.0, mig=other, stagger_s=0.4),
    )
    return prepare(replace(what, mig=first, changes=changes))


@pytest.mark.parametrize("system", tiered(SYSTEMS, "c2cserve", "graph_start", "parked_3"))
@settings(max_examples=3, deadline=None, phases=AS_DRAWN)
@given(
    load=loads,
    cancel=st.sampled_from([0.0, 0.3]),
    lost=st.lists(st.integers(0, 50), max_size=8),
)
def test_a_stubborn_backend_is_served_through_changes(
    system: str, load: tuple[int, float, int], cancel: float, lost: list[int]
) -> None:
    what = changing(system)
    n, rate, seed = load
    plan = LayoutSchedule(what)
    wishes = []
    while plan.next_s < np.inf:
        event = plan.next_event()
        if isinstance(event, ChangeLayout):
            wishes.append(event)
            plan.left(event.chip, event.at_s)
    backend = StubbornBackend(
        random_requests(n, models(system), rate, seed),
        seed=seed,
        cancel=cancel,
        lose=[d for d in lost if d < len(what.kind_of)],
        deadline=0.3,
        jump_s=0.0,
        tell=1.0,
        changes=wishes,
    )
    serve(what, backend)


@pytest.mark.parametrize("system", tiered(SYSTEMS, "c2cserve_plus"))
@settings(max_examples=2, deadline=None, phases=AS_DRAWN)
@given(load=loads)
def test_records_are_the_same_compiled_interpreted_and_over_the_port(
    system: str, load: tuple[int, float, int]
) -> None:
    n, rate, seed = load
    what, block = changing(system), random_requests(n, models(system), rate, seed)
    over_port, _, _ = serve(what, SimulatorBackend(what, build_machine(what), block))
    interpreted, stats, _ = simulate(what, block)
    compiled, compiled_stats, _ = simulate(what, block, compiled=True)
    assert over_port.tobytes() == interpreted.tobytes() == compiled.tobytes()
    assert stats.changes == compiled_stats.changes
    np.testing.assert_array_equal(stats.since_s, compiled_stats.since_s)
    np.testing.assert_array_equal(stats.until_s, compiled_stats.until_s)
    served = interpreted[interpreted.failure == FAIL_NONE]
    # a request ends on a slice that was there while it was served
    assert (stats.since_s[served.slice] <= served.finished_s).all()
    assert (served.finished_s <= stats.until_s[served.slice] + 1e-9).all()


class Loop:
    """Two slices of a chip that can be cut into four."""

    def __init__(self, **system: Any) -> None:
        change = LayoutChange(at_s=1.0, mig="4x24gb")
        what = setup("llama-3-3b", "llama-3-8b", mig="2x48gb", **system)
        self.prepared = prepare(replace(what, changes=(change,)))
        self.state = self.prepared.new_serving()

    def take(self, event: Any) -> tuple[Any, ...]:
        what = self.prepared
        self.state, actions = step(what.fleet, what.rules, self.state, event)
        return actions

    def decoding(self) -> None:
        """Serve a request of model 0 on device 0 up to its decode steps."""
        self.take(Arrival(at_s=0.0, request_id=7, model=0, prompt_tokens=100, max_output_tokens=50))
        self.take(Ready(at_s=0.1, device=0, available_gbps=100.0))
        (run,) = self.steps(1, 0.2)
        assert isinstance(run, RunSteps)

    def steps(self, n: int, at_s: float, d: int = 0) -> tuple[Any, ...]:
        report = new_report(steps=n, latency_s=0.01, available_gbps=100.0)
        return self.take(StepEnd(at_s=at_s, device=d, report=report))

    def change(self, **more: Any) -> tuple[Any, ...]:
        return self.take(ChangeLayout(at_s=0.5, chip=0, leaves=(0, 1), comes=(2, 3, 4, 5), **more))


def test_a_batch_ends_where_it_is_before_the_chip_is_cut() -> None:
    loop = Loop()
    loop.decoding()
    assert loop.change() == ()
    late = Arrival(at_s=0.6, request_id=8, model=0, prompt_tokens=10, max_output_tokens=5)
    assert loop.take(late) == ()  # it waits for the new layout
    assert loop.steps(49, 0.9)[-1] == Recut(chip=0)
    (load,) = loop.take(LayoutChanged(at_s=3.0, chip=0))
    assert isinstance(load, Load)
    assert load.device in (2, 3, 4, 5)
    assert loop.state.device.since_s.tolist() == [0, 0, 3, 3, 3, 3]
    assert loop.state.device.until_s.tolist()[:2] == [0.9, 0.5]


def test_without_drain_a_batch_is_set_aside_at_the_next_step_and_goes_on_later() -> None:
    loop = Loop()
    loop.decoding()
    loop.change(drain=False)
    actions = loop.steps(3, 0.6)
    assert SetAside(request_id=7) in actions
    assert [type(a) for a in actions][-2:] == [Unload, Recut]
    (load,) = loop.take(LayoutChanged(at_s=3.0, chip=0))
    (run,) = loop.take(Ready(at_s=3.1, device=load.device, available_gbps=100.0))
    assert run.prefills == ((7, 0, 104),)  # with the tokens that it had made


def test_what_fits_no_slice_of_the_new_layout_fails_at_once() -> None:
    loop = Loop(hbm_reserve_bytes=23.9e9)
    small, large = (loop.prepared.fleet.kv_capacity[1, k] for k in loop.prepared.kind_of[[2, 0]])
    for k, tokens in enumerate((small, small, small, small - 1)):
        loop.take(
            Arrival(
                at_s=0.0, request_id=k, model=k % 2, prompt_tokens=int(tokens), max_output_tokens=1
            )
        )
    assert small < large
    loop.change()
    failed = loop.state.records[: loop.state.count[0].out]
    assert failed.failure.tolist() == [FAIL_DEVICE]
    assert failed.id.tolist() == [1]


def test_a_lost_device_does_not_hold_a_change_up() -> None:
    loop = Loop()
    loop.decoding()
    loop.change()
    assert loop.take(DeviceLost(at_s=0.7, device=0)) == (Recut(chip=0),)
    (load,) = loop.take(LayoutChanged(at_s=2.0, chip=0))
    assert isinstance(load, Load)


@pytest.mark.parametrize(
    ("event", "field"),
    [
        (ChangeLayout(at_s=0.5, chip=1, leaves=(), comes=()), "chip"),
        (ChangeLayout(at_s=0.5, chip=0, leaves=(2,), comes=()), "leaves"),
        (ChangeLayout(at_s=0.5, chip=0, leaves=(0,), comes=(1,)), "comes"),
        (LayoutChanged(at_s=0.5, chip=0), "chip"),
    ],
)
def test_a_change_that_cannot_be_is_refused(event: Any, field: str) -> None:
    with pytest.raises(BackendError) as caught:
        Loop().take(event)
    assert (caught.value.event, caught.value.field) == (type(event).__name__, field)


def test_a_second_change_waits_for_the_first() -> None:
    loop = Loop()
    loop.decoding()
    loop.change()
    with pytest.raises(BackendError, match="does not change yet"):
        loop.change()


def test_a_change_to_the_layout_that_is_there_is_refused() -> None:
    what = setup("llama-3-3b", mig="2x48gb")
    same = replace(what, changes=(LayoutChange(at_s=1.0, mig="2x48gb"),))
    with pytest.raises(SettingError, match=r"mig_changes\[0\]\.mig='2x48gb'"):
        prepare(same)
