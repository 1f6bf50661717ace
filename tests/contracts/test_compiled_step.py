"""The step takes the same decisions interpreted and as machine code, for all systems."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from c2c.engine import stepping
from c2c.engine.stepping import Stepping
from c2c.errors import BackendError
from c2c.serving import PrefixCache, prepare
from c2c.serving.events import is_lost
from c2c.serving.loop import Step, step
from c2c.serving.port import (
    Action,
    Arrival,
    BlocksLost,
    Event,
    ForgetBlocks,
    Load,
    Ready,
    RunSteps,
    StepEnd,
    new_report,
)
from c2c.serving.prepare.prefixes import with_blocks
from c2c.serving.state import Loop, Serving
from tests.contracts.stubborn import StubbornBackend
from tests.contracts.systems import ON_FLEETS, models, prepared
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
    """Return what was done in a world in which everything happens that may."""
    backend, did = StubbornBackend(
        random_requests(12, models(system), 4.0, 5), seed=5, cancel=0.2, lose=[0], deadline=0.3,
        jump_s=0.1, tell=0.5,
    ), []  # fmt: skip
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


def _compiled(system: str, fleet: str) -> list[tuple[Any, ...]]:
    """Return what machine code does, whose records are taken out after each event."""
    what = prepared(system, fleet)
    rules = what.new_rules()
    state = what.new_serving(slots=2, buffer=1, rules=rules)
    compiled = Step(Loop(what.fleet, rules, state), compiled=True)

    def take(event: Event) -> Taken:
        nonlocal state
        state, actions = compiled(state, event)
        count = state.count[0]
        ended = [tuple(row) for row in state.records[: count.out]]
        count.out = 0
        return float(count.now_s), actions, ended

    return _serve(system, take)


@pytest.mark.parametrize(("system", "fleet"), ON_FLEETS)
def test_python_and_machine_code_serve_alike(system: str, fleet: str) -> None:
    did = _interpreted(system, fleet)
    assert did == _compiled(system, fleet)
    assert sum(len(ended) for _, _, ended in did) == 12


def test_they_find_and_forget_the_same_blocks() -> None:
    """Keys come by more than a column and a slot; blocks of a lost worker are gone."""
    setup = prepared("engine", "tight").setup
    cached = replace(setup.system, prefix_cache=PrefixCache(hbm=True))
    what = prepare(replace(setup, system=cached))

    def keyed(event: Event) -> Event:
        if not isinstance(event, Arrival):
            return event
        keys = range(min(event.request_id % 4 * 3, (event.prompt_tokens - 1) // 64))
        return replace(event, blocks=tuple(1000 * event.model + key for key in keys))

    def serve(*, is_compiled: bool) -> tuple[list[tuple[Any, ...]], Serving]:
        rules = what.new_rules()
        state = with_blocks(
            what, what.new_serving(slots=2, buffer=1, rules=rules), 64, 1, tells=True
        )
        compiled = Step(Loop(what.fleet, rules, state), compiled=True)
        seen = 0

        def take(event: Event) -> Taken:
            nonlocal state, seen
            if is_compiled:
                state, actions = compiled(state, keyed(event))
            else:
                state, actions = step(what.fleet, rules, state, keyed(event), donate=True)
            ended = [tuple(row) for row in state.records[: state.count[0].out]]
            state.count[0].out = 0
            seen += 1
            if seen % 40 == 0 and not is_lost(state, 1):
                now_s = float(state.count[0].now_s)
                state, more = step(what.fleet, rules, state, BlocksLost(at_s=now_s, device=1))
                actions = (*actions, *more)
            return float(state.count[0].now_s), actions, ended

        return _serve("engine", take), state

    (did, after), (also, compiled) = serve(is_compiled=False), serve(is_compiled=True)
    assert did == also
    assert after.blocks.table[0] == compiled.blocks.table[0]
    assert after.blocks.table[0].found_hbm_tokens > 0
    assert sum(isinstance(a, ForgetBlocks) for _, actions, _ in did for a in actions) > 0
    assert not after.blocks.entry.pins[after.blocks.entry.pool >= 0][
        : after.blocks.table[0].begun
    ].any()


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

    monkeypatch.setattr(stepping, "is_compiled", lambda: False)
    assert _serve("triage_3", take) == _interpreted("triage_3", "tight")
    assert taken > 30


def test_what_cannot_be_compiled_stays_interpreted(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    what = prepared("engine", "roomy")
    rules = what.new_rules()
    taking = Stepping(what.fleet, rules, what.new_serving(rules=rules))
    monkeypatch.setattr(stepping, "is_compiled", lambda: False)
    monkeypatch.setattr(stepping, "_MAKER", "c2c.engine.no_such_module")
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
