"""The live engine's step, which becomes machine code while the engine serves."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from c2c.engine import loop_step
from c2c.engine.loop_step import Stepping
from c2c.errors import BackendError
from c2c.serving.loop import Step, step
from c2c.serving.tables.port import (
    Action,
    Arrival,
    Cancelled,
    DeviceLost,
    Event,
    Load,
    Ready,
    RunSteps,
    StepEnd,
    new_report,
)
from c2c.serving.tables.state import Loop
from tests.contracts.recorded import Recorded
from tests.contracts.systems import models, prepared
from tests.simulator.worlds import random_requests

type Taken = tuple[float, tuple[Action, ...], list[tuple[Any, ...]]]


def _plain(taken: Taken) -> tuple[Any, ...]:
    now_s, actions, ended = taken
    done = [
        (a.device, a.instance, a.model, a.prefills, a.decodes, *a.plan)
        if isinstance(a, RunSteps)
        else a
        for a in actions
    ]
    return now_s, done, ended


def _serve(system: str, take: Callable[[Event], Taken]) -> list[tuple[Any, ...]]:
    """Return what is done with twelve requests, of which some are cancelled, and a lost device."""
    what, block = prepared(system, "tight"), random_requests(12, models(system), 4.0, 5)
    incidents = [DeviceLost(at_s=1.0, device=0), Cancelled(at_s=2.0, request_id=3)]
    backend, did = Recorded(what, block, incidents=incidents), []
    while (event := backend.next_event()) is not None:
        taken = take(event)
        did.append(_plain(taken))
        backend.submit(taken[0], taken[1])
    return did


def _interpreted(system: str, fleet: str) -> list[tuple[Any, ...]]:
    """Return what is done as Python, whose records grow."""
    what = prepared(system, fleet)
    rules, seen = what.new_rules(), 0
    state = what.new_serving(slots=2, buffer=1, rules=rules)

    def take(event: Event) -> Taken:
        nonlocal state, seen
        state, actions = step(what.fleet, rules, state, event, donate=True)
        count, before = state.count[0], seen
        seen = int(count.out)
        return float(count.now_s), actions, [tuple(row) for row in state.records[before:seen]]

    return _serve(system, take)


@pytest.mark.parametrize("after", [0, 20])
def test_an_engine_goes_on_compiled_in_the_middle(
    after: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The machine code is made by a process beside, as where none is on disk."""
    what = prepared("triage_3", "tight")
    rules = what.new_rules()
    taking = Stepping(what.fleet, rules, what.new_serving(slots=2, buffer=1, rules=rules))
    taken = 0

    def take(event: Event) -> Taken:
        nonlocal taken
        if taken == after:
            assert not taking.is_compiled
            asyncio.run(taking.compile())
            assert taking.is_compiled
        taken += 1
        now_s, actions, ended = taking.take(event)
        return now_s, actions, [tuple(row) for row in ended]

    monkeypatch.setattr(loop_step, "is_compiled", lambda: False)
    assert _serve("triage_3", take) == _interpreted("triage_3", "tight")
    assert taken > 30


def test_what_cannot_be_compiled_stays_interpreted(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    what = prepared("engine", "roomy")
    rules = what.new_rules()
    taking = Stepping(what.fleet, rules, what.new_serving(rules=rules))
    monkeypatch.setattr(loop_step, "is_compiled", lambda: False)
    monkeypatch.setattr(loop_step, "_MAKER", "c2c.engine.no_such_module")
    asyncio.run(taking.compile())
    assert not taking.is_compiled
    assert "stays interpreted" in caplog.text
    _, (load,), _ = taking.take(
        Arrival(at_s=0.0, request_id=1, model=0, prompt_tokens=9, max_output_tokens=2)
    )
    assert isinstance(load, Load)
    assert load.model == 0


@pytest.mark.parametrize(
    "event",
    [
        Arrival(at_s=0.0, request_id=1, model=99, prompt_tokens=9, max_output_tokens=2),
        Arrival(at_s=0.0, request_id=1, model=0, prompt_tokens=0, max_output_tokens=2),
        Ready(at_s=0.0, device=0, available_gbps=1.0),
        StepEnd(at_s=0.0, device=0, report=new_report(steps=1)),
        StepEnd(at_s=0.0, device=999, report=new_report(steps=1)),
    ],
)
def test_what_cannot_be_is_refused_as_interpreted(event: Event) -> None:
    what = prepared("engine", "roomy")
    rules = what.new_rules()
    state = what.new_serving(rules=rules)
    with pytest.raises(BackendError) as said:
        step(what.fleet, rules, state, event)
    with pytest.raises(BackendError) as compiled:
        Step(Loop(what.fleet, rules, state), compiled=True)(state, event)
    assert str(compiled.value) == str(said.value)
