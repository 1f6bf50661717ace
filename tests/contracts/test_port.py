"""Single events through the port: what follows from each, and what is refused."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from c2c.errors import BackendError
from c2c.serving import FAIL_CANCELLED, FAIL_DEADLINE, FAIL_DEVICE, Prepared, Serving, prepare
from c2c.serving.loop import step
from c2c.serving.tables.port import (
    Action,
    Arrival,
    Cancelled,
    DeviceBack,
    DeviceLost,
    Event,
    Forget,
    Interrupt,
    Load,
    Ready,
    RunSteps,
    SetTimer,
    StepEnd,
    Timer,
    new_report,
)
from tests.simulator.worlds import setup

ASK = Arrival(at_s=0.0, request_id=7, model=0, prompt_tokens=100, max_output_tokens=50)


class Loop:
    """A loop that is fed one event at a time."""

    def __init__(self, mig: str = "2x48gb") -> None:
        self.prepared: Prepared = prepare(setup("llama-3-3b", mig=mig))
        self.state: Serving = self.prepared.new_serving()

    def take(self, event: Event) -> tuple[Action, ...]:
        what = self.prepared
        self.state, actions = step(what.fleet, what.rules, self.state, event)
        return actions

    def ready(self, d: int = 0, at_s: float = 1.0) -> tuple[Action, ...]:
        return self.take(Ready(at_s=at_s, device=d, available_gbps=100.0))

    def steps(
        self, n: int, at_s: float, d: int = 0, finished: tuple[int, ...] = ()
    ) -> tuple[Action, ...]:
        report = new_report(steps=n, latency_s=0.1, available_gbps=100.0)
        return self.take(StepEnd(at_s=at_s, device=d, report=report, finished=finished))

    def decoding(self) -> RunSteps:
        """Serve `ASK` up to its first token and return the run of decode steps that follows."""
        (load,) = self.take(ASK)
        assert isinstance(load, Load)
        (prompt,) = self.ready()
        assert isinstance(prompt, RunSteps)
        assert (prompt.prefills, prompt.decodes) == (((7, 0, 100),), ())
        (run,) = self.steps(1, 2.0)
        assert isinstance(run, RunSteps)
        assert (run.prefills, run.decodes, int(run.plan.steps)) == ((), (7,), 49)
        return run

    def records(self) -> Any:
        return self.state.records[: self.state.count[0].out]


def test_a_request_ends_by_report_before_its_bound() -> None:
    loop = Loop()
    loop.decoding()
    assert loop.steps(5, 3.0, finished=(7,)) == ()
    (record,) = loop.records()
    assert (record.failure, record.output_tokens, record.finished_s) == (0, 6, 3.0)
    assert not loop.state.device.kv_bytes.any()


def test_a_request_ends_at_its_bound_if_nobody_says_so() -> None:
    loop = Loop()
    loop.decoding()
    assert loop.steps(49, 3.0) == (Forget(request_id=7),)
    assert loop.records().output_tokens.tolist() == [50]


def test_a_cancelled_request_leaves_with_the_step_that_computes_it() -> None:
    loop = Loop()
    loop.decoding()
    cancel = Cancelled(at_s=2.5, request_id=7)
    assert loop.take(cancel) == (Interrupt(device=0),)
    assert len(loop.records()) == 0
    assert loop.steps(3, 2.6) == (Forget(request_id=7),)
    (record,) = loop.records()
    assert (record.failure, record.output_tokens, record.finished_s) == (FAIL_CANCELLED, 1, 2.6)
    assert loop.take(replace(cancel, at_s=9.0)) == ()  # it has ended already


def test_a_deadline_passes_while_the_request_waits() -> None:
    loop = Loop()
    timer = loop.take(replace(ASK, deadline_s=0.5))[-1]
    assert timer == SetTimer(at_s=0.5)
    assert loop.take(Timer(at_s=0.1)) == (timer,)  # too early: set again
    assert loop.take(Timer(at_s=0.7)) == ()
    (record,) = loop.records()
    assert (record.failure, record.finished_s) == (FAIL_DEADLINE, 0.7)
    assert loop.ready() == ()  # what was loaded stays, idle


def test_a_request_goes_on_where_it_was_when_its_device_is_lost() -> None:
    loop = Loop()
    loop.decoding()
    loop.take(Arrival(at_s=2.1, request_id=8, model=0, prompt_tokens=10, max_output_tokens=5))
    loop.steps(3, 2.2)  # three more tokens; request 8 joins
    (load,) = loop.take(DeviceLost(at_s=2.3, device=0))
    assert isinstance(load, Load)
    assert load.device == 1
    assert loop.steps(1, 2.4) == ()  # a late report of the lost device
    (run,) = loop.ready(d=1, at_s=3.0)
    assert isinstance(run, RunSteps)
    assert run.prefills == ((7, 0, 104), (8, 0, 10))
    (run,) = loop.steps(1, 4.0, d=1)
    assert isinstance(run, RunSteps)
    loop.steps(4, 5.0, d=1, finished=(8,))
    loop.steps(41, 6.0, d=1, finished=(7,))
    records = {int(r.id): r for r in loop.records()}
    assert (records[7].prompt_tokens, records[7].output_tokens) == (100, 50)
    assert (records[7].first_token_s, records[7].finished_s, records[7].slice) == (2.0, 6.0, 1)
    assert (records[8].prompt_tokens, records[8].output_tokens) == (10, 5)
    assert records[8].first_token_s == 4.0


def test_what_no_device_is_left_for_fails() -> None:
    loop = Loop(mig="1x96gb")
    loop.decoding()
    assert loop.take(DeviceLost(at_s=2.5, device=0)) == ()
    assert loop.take(replace(ASK, at_s=3.0, request_id=9)) == ()
    assert loop.records().failure.tolist() == [FAIL_DEVICE, FAIL_DEVICE]
    assert loop.records().output_tokens.tolist()[0] == 1


def test_a_device_that_returns_serves_what_comes_then() -> None:
    loop = Loop(mig="1x96gb")
    loop.decoding()
    loop.take(DeviceLost(at_s=2.5, device=0))
    assert loop.take(DeviceBack(at_s=4.0, device=0)) == ()
    (load,) = loop.take(replace(ASK, at_s=5.0, request_id=9))
    assert isinstance(load, Load)
    assert loop.state.device[0].since_s == 1.5  # in service all but 1.5 s


def test_a_clock_that_jumps_back_does_not_turn_time() -> None:
    loop = Loop()
    loop.decoding()
    loop.steps(49, -5.0, finished=(7,))
    assert loop.records().finished_s.tolist() == [2.0]


@pytest.mark.parametrize(
    ("event", "field"),
    [
        (replace(ASK, model=3), "model"),
        (replace(ASK, prompt_tokens=0), "prompt_tokens"),
        (replace(ASK, deadline_s=-1.0), "deadline_s"),
        (Ready(at_s=3.0, device=0, available_gbps=1.0), "device"),
        (DeviceLost(at_s=3.0, device=2), "device"),
        (DeviceBack(at_s=3.0, device=0), "device"),
        (Timer(at_s=3.0, number=9), "number"),
        (StepEnd(at_s=3.0, device=1, report=new_report(steps=1)), "device"),
        (StepEnd(at_s=3.0, device=0, report=new_report(steps=50)), "report.steps"),
        (StepEnd(at_s=3.0, device=0, report=new_report(steps=1)), "report.available_gbps"),
        (
            StepEnd(at_s=3.0, device=0, report=new_report(steps=1, latency_s=math.nan)),
            "report.latency_s",
        ),
        (
            StepEnd(
                at_s=3.0, device=0, report=new_report(steps=1, available_gbps=1.0), finished=(8,)
            ),
            "finished",
        ),
    ],
)
def test_an_event_that_cannot_be_is_refused(event: Event, field: str) -> None:
    loop = Loop()
    loop.decoding()
    with pytest.raises(BackendError) as caught:
        loop.take(event)
    assert (caught.value.event, caught.value.field) == (type(event).__name__, field)
    loop.steps(49, 4.0, finished=(7,))  # the state before it is whole
    assert len(loop.records()) == 1
