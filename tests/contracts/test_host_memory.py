"""Weights in a host memory that does not hold all models."""

from __future__ import annotations

from dataclasses import replace

from c2c.policies import AtOutstanding, LeastLoaded, RoundRobin, WhereWorkIs
from c2c.serving import prepare
from c2c.serving.loop import step
from c2c.serving.tables.port import (
    Action,
    Arrival,
    Event,
    Load,
    Ready,
    RunSteps,
    StepEnd,
    new_report,
)
from tests.simulator.worlds import setup


def test_a_model_gives_way_though_several_idle_instances_hold_its_weights() -> None:
    made = setup(
        "llama-3-3b", "llama-3-3b", mig="2x48gb", engines__residents=2, scale=AtOutstanding(1),
        turn=RoundRobin(), route=WhereWorkIs(), place=LeastLoaded(), check_slo=False,
    )  # fmt: skip
    host = replace(made.platform.host, memory_bytes=int(9e9))  # of two models of 6.4 GB
    what = prepare(replace(made, platform=replace(made.platform, host=host)))
    state, now_s = what.new_serving(), 0.0
    doing: dict[int, Action] = {}

    def take(event: Event) -> list[Action]:
        nonlocal state
        state, actions = step(what.fleet, what.rules, state, event, donate=True)
        doing.update({a.device: a for a in actions if isinstance(a, Load | RunSteps)})
        return list(actions)

    for name in (0, 1):
        take(Arrival(at_s=0.0, request_id=name, model=0, prompt_tokens=9, max_output_tokens=1))
    while doing:
        now_s += 1.0
        device, action = doing.popitem()
        if isinstance(action, Load):
            take(Ready(at_s=now_s, device=device, available_gbps=100.0))
        else:
            assert isinstance(action, RunSteps)
            report = new_report(steps=1, latency_s=1.0, available_gbps=100.0)
            over = tuple(request for request, *_ in action.prefills)
            take(StepEnd(at_s=now_s, device=device, report=report, finished=over))
    instances = [i for i in state.instance if i.model == 0]
    assert len(instances) == 2, "each on a slice of its own, both without work"
    asked = take(Arrival(at_s=now_s, request_id=2, model=1, prompt_tokens=9, max_output_tokens=1))
    assert [a.model for a in asked if isinstance(a, Load)] == [1]
