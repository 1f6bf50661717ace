"""The more urgent come first: queues, and slices that others hold (C2CServe section 6.1)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from c2c.errors import SettingError
from c2c.models import load_catalog
from c2c.policies import AfterWaiting, ByPriority
from c2c.serving import Prepared, Serving, prepare
from c2c.serving.batches.preemption import clear_for
from c2c.serving.batches.queues import append_pending
from c2c.serving.loop import step
from c2c.serving.placement import make_active
from c2c.serving.tables.port import (
    Action,
    Arrival,
    Event,
    Interrupt,
    Load,
    Ready,
    RunSteps,
    SetAside,
    StepEnd,
    Unload,
    new_report,
)
from c2c.serving.tables.state import RUNNING, Loop
from tests.simulator.worlds import random_requests, requests, setup, simulate


def served(preempt: Any, *priorities: int, mig: str = "1x96gb", **system: Any) -> Prepared:
    made = setup(*["llama-3-3b"] * len(priorities), mig=mig, preempt=preempt, **system)
    pairs = zip(made.deployments, priorities, strict=True)
    return prepare(replace(made, deployments=tuple(replace(d, priority=p) for d, p in pairs)))


class Slice:
    """One slice that is fed one event at a time."""

    def __init__(self, preempt: Any = ByPriority()) -> None:  # noqa: B008 (a tuple)
        self.prepared = served(preempt, 0, 0)
        self.state: Serving = self.prepared.new_serving()

    def take(self, event: Event) -> tuple[Action, ...]:
        what = self.prepared
        self.state, actions = step(what.fleet, what.rules, self.state, event)
        return actions

    def ask(self, name: int, model: int, at_s: float, **more: Any) -> tuple[Action, ...]:
        asked = {"prompt_tokens": 100, "max_output_tokens": 50} | more
        return self.take(Arrival(at_s=at_s, request_id=name, model=model, **asked))

    def ready(self, at_s: float) -> tuple[Action, ...]:
        return self.take(Ready(at_s=at_s, device=0, available_gbps=100.0))

    def steps(self, n: int, at_s: float, finished: tuple[int, ...] = ()) -> tuple[Action, ...]:
        report = new_report(steps=n, latency_s=0.1, available_gbps=100.0)
        return self.take(StepEnd(at_s=at_s, device=0, report=report, finished=finished))


def test_a_request_gives_up_its_slice_and_goes_on_later() -> None:
    one = Slice()
    one.ask(1, 0, 0.0)
    one.ready(1.0)
    one.steps(1, 2.0)  # its first token; 49 are left
    assert one.ask(2, 1, 2.5, priority=1) == (Interrupt(device=0),)
    aside, unload, load = one.steps(4, 3.0)
    assert aside == SetAside(request_id=1)
    assert isinstance(unload, Unload)
    assert isinstance(load, Load)
    assert load.model == 1
    one.ready(4.0)
    one.steps(1, 5.0)
    unload, load = one.steps(49, 6.0, finished=(2,))
    assert isinstance(load, Load)
    assert load.model == 0
    (prompt,) = one.ready(7.0)
    assert isinstance(prompt, RunSteps)
    assert prompt.prefills == ((1, 0, 105),)  # its prompt and the five tokens it had
    (run,) = one.steps(1, 8.0)
    assert isinstance(run, RunSteps)
    assert run.plan.steps == 44
    one.steps(44, 9.0, finished=(1,))
    records = {int(r.id): r for r in one.state.records[: one.state.count[0].out]}
    assert (records[1].prompt_tokens, records[1].output_tokens) == (100, 50)
    assert (records[1].first_token_s, records[1].finished_s) == (2.0, 9.0)
    assert one.state.count[0].preempted == 1


@pytest.mark.parametrize(("policy", "priority"), [((), -1), ((), 0), ((AfterWaiting(),), 9)])
def test_equals_and_the_less_urgent_wait(policy: Any, priority: int) -> None:
    one = Slice(*policy)
    one.ask(1, 0, 0.0)
    one.ready(1.0)
    one.steps(1, 2.0)
    assert one.ask(2, 1, 2.5, priority=priority) == ()


def test_one_urgent_request_protects_those_that_share_its_batch() -> None:
    one = Slice()
    one.ask(1, 0, 0.0)
    one.ask(2, 0, 0.1, priority=5)
    one.ready(1.0)
    assert one.ask(3, 1, 2.5, priority=5) == ()


@pytest.mark.parametrize("kv_tokens", [(100, 200), (200, 100)])
def test_the_slice_with_least_to_compute_anew_is_cleared(kv_tokens: tuple[int, int]) -> None:
    what = served(ByPriority(), 0, 0, 1, mig="2x48gb")
    state = what.new_serving(active=False)
    for i, tokens in enumerate(kv_tokens):
        make_active(Loop(what.fleet, what.rules, state), i, i, 0.0)
        inst = state.instance[i]
        inst.state, inst.n_decode, inst.kv_used = RUNNING, 1, tokens
        state.decoding[i, 0] = i, 500, 600
    state.request.prompt[20], state.request.output[20], state.request.priority[20] = 100, 50, 1
    state.model.wait_head[2] = 20
    assert clear_for(Loop(what.fleet, what.rules, state), 2) == -1  # at its next step boundary
    assert state.instance.aside[:2].tolist() == [t == min(kv_tokens) for t in kv_tokens]


def test_the_urgent_come_first_in_a_queue() -> None:
    one = Slice()
    for name, priority in enumerate([0, 2, 0, 1, 2, -1]):
        one.ask(name, 0, 0.1 * name, priority=priority, prompt_tokens=20)
    (prompt,) = one.ready(1.0)
    assert isinstance(prompt, RunSteps)
    assert [request for request, _, _ in prompt.prefills] == [1, 4, 3, 0, 2, 5]


def test_a_queue_holds_its_requests_whatever_their_slots() -> None:
    what = served(ByPriority(), 0)
    state, order = what.new_serving(active=False), [0, 3, 1]
    for slot in order:
        append_pending(what.fleet, state, 0, slot)
    found = [int(state.model.wait_head[0])]
    while (slot := int(state.request.next[found[-1]])) >= 0:
        found.append(slot)
    assert found == order
    assert state.model.n_wait[0] == 3


loads = st.tuples(st.integers(2, 24), st.sampled_from([0.5, 4.0, 50.0]), st.integers(0, 2**31))


@settings(max_examples=15, deadline=None)
@given(load=loads, priorities=st.lists(st.integers(-2, 2), min_size=4, max_size=4))
def test_nothing_is_lost_and_what_was_moved_is_charged(
    load: tuple[int, float, int], priorities: list[int]
) -> None:
    n, rate, seed = load
    what = served(ByPriority(2.0), *priorities, mig="2x48gb", max_batch=4)
    records, stats, simulation = simulate(
        what, random_requests(n, 4, rate, seed), timeline_rows=100_000
    )
    assert records.id.tolist() == list(range(n))
    assert not records.failure.any()
    if len(set(priorities)) == 1:
        assert stats.preempted == 0
    phases = simulation.timeline()
    loaded = float(simulation.machine.load_link_bytes[phases.model[phases.is_load == 1], 0].sum())
    moved = float(stats.instance_link_bytes.sum())
    assert records.link_bytes.sum() + loaded == pytest.approx(moved, rel=1e-9)


def test_priority_is_worth_something() -> None:
    # Model 0 keeps the only slice busy; model 1 asks now and then.
    arrivals = np.concatenate([np.arange(40) * 0.5, [3.0, 9.0, 15.0]])
    order = np.argsort(arrivals, kind="stable")
    model = np.where(np.arange(43) < 40, 0, 1)[order]
    block = requests(arrivals[order], model, prompt=200, output=100)
    waited = {}
    for name, policy in (("equal", (0, 0)), ("urgent", (0, 1))):
        records, stats, _ = simulate(served(ByPriority(), *policy), block)
        mine = records[records.model == 1]
        waited[name] = float((mine.first_token_s - mine.arrival_s).max())
        assert (stats.preempted > 0) == (name == "urgent")
    assert waited["urgent"] < 1.0 < waited["equal"]


@pytest.mark.parametrize("priority", [1.5, True, "high", 2**40])
def test_a_priority_is_a_whole_number(priority: object) -> None:
    with pytest.raises(SettingError, match="priority"):
        load_catalog([{"spec": "llama-3-3b", "priority": priority}])
