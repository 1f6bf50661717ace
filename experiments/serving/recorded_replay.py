"""Replay of a live run with recorded seconds."""

from __future__ import annotations

import heapq
import math
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from c2c.errors import DataError
from c2c.serving import Prepared
from c2c.serving.loop import Step
from c2c.serving.prepare.prefixes import with_blocks
from c2c.serving.tables.pools import entry_of
from c2c.serving.tables.port import (
    Action,
    Backend,
    Cancelled,
    DeviceLost,
    Event,
    KeepWeights,
    Load,
    Ready,
    ReleaseWeights,
    RunSteps,
    SetTimer,
    StepEnd,
    Timer,
    WeightsHere,
    new_report,
)
from c2c.serving.tables.state import Loop
from c2c.simulator import requests_table
from c2c.transformer.layers.pages import PAGE_TOKENS
from experiments.serving.inputs import Inputs

__all__ = ["Retold", "retell"]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    number: int
    seconds: float
    steps: int
    what: tuple[str, int, int]  # model, prompt tokens, decodes; 0 and 0 for a load


@dataclass(frozen=True, slots=True, kw_only=True)
class Retold:
    """Records of the replay, its plans, and equal ones."""

    requests: pa.Table
    plans: int
    equal: int


class _Recorded:
    """Backend (`c2c.serving.tables.port.Backend`) that repeats recorded events and times."""

    def __init__(self, prepared: Prepared, inputs: Inputs, steps: pa.Table) -> None:
        self._names = [d.name for d in prepared.setup.deployments]
        self._gbps = prepared.link_capacity_gbps / len(prepared.chip_of)
        self._inputs = inputs
        self._made: Counter[int] = Counter()
        self._plans = _plans(steps)
        cancels = [
            Cancelled(at_s=a.at_s + after_s, request_id=a.request_id)
            for a, after_s in zip(inputs.arrivals, inputs.cancel_s, strict=True)
            if after_s < math.inf
        ]
        outside = [*inputs.arrivals, *cancels, *inputs.others]
        self._outside = deque(sorted(outside, key=lambda event: event.at_s))
        self._lost = {e.device for e in inputs.others if isinstance(e, DeviceLost)}
        self._later: list[tuple[float, int, Event]] = []
        self._timer_s = math.inf
        self.plans = self.equal = 0

    def submit(self, at_s: float, actions: Sequence[Action]) -> None:
        for action in actions:
            if isinstance(action, Load | RunSteps):
                self._begin(action, at_s)
            elif isinstance(action, SetTimer):
                self._timer_s = action.at_s

    def _begin(self, action: Load | RunSteps, at_s: float) -> None:
        d = action.device
        self.plans += 1
        was = self._was(action, d)
        if was is None:
            return
        end_s = at_s + was.seconds
        self.equal += self._what(action) == was.what
        event: Event
        if isinstance(action, Load):
            event = Ready(at_s=end_s, device=d, available_gbps=self._gbps)
        else:
            event = self._end(action, was, end_s)
        heapq.heappush(self._later, (end_s, d, event))

    def _what(self, action: Load | RunSteps) -> tuple[str, int, int]:
        name = self._names[action.model]
        if isinstance(action, Load):
            return name, 0, 0
        return name, sum(n for *_, n in action.prefills), len(action.decodes)

    def _was(self, action: Load | RunSteps, d: int) -> _Plan | None:
        """Return a plan's record; None if its worker was lost for good."""
        recorded, description = self._plans.get(d), self._what(action)
        if recorded and recorded[0].number > self.plans and recorded[0].what != description:
            return _Plan(number=self.plans, seconds=0.0, steps=1, what=description)  # cancelled
        if recorded:
            return recorded.popleft()
        if d in self._lost:
            return None
        raise DataError(f"plans of worker {d}", "the loop asks for more than were recorded")

    def _end(self, action: RunSteps, was: _Plan, end_s: float) -> StepEnd:
        rest_tokens = [self._left(request) for request in action.decodes]
        steps = max(1, min([was.steps, *rest_tokens])) if not action.prefills else 1
        got = dict.fromkeys(action.decodes, steps)
        for request, first, tokens in action.prefills:
            if first + tokens == self._inputs.arrivals[request].prompt_tokens:
                got[request] = 1
        self._made.update(got)
        report = new_report(steps=steps, latency_s=was.seconds / steps, available_gbps=self._gbps)
        finished = tuple(request for request in got if not self._left(request))
        return StepEnd(at_s=end_s, device=action.device, report=report, finished=finished)

    def _left(self, request: int) -> int:
        return self._inputs.lengths[request] - self._made[request]

    def next_event(self) -> Event | None:
        ends_s = self._later[0][0] if self._later else math.inf
        comes_s = self._outside[0].at_s if self._outside else math.inf
        if self._timer_s <= min(ends_s, comes_s) and self._timer_s < math.inf:
            at_s, self._timer_s = self._timer_s, math.inf
            return Timer(at_s=at_s)
        if comes_s < ends_s:
            return self._outside.popleft()
        return heapq.heappop(self._later)[2] if self._later else None


def _plans(steps: pa.Table) -> dict[int, deque[_Plan]]:
    result: dict[int, deque[_Plan]] = {}
    under_way: dict[int, list[dict[str, Any]]] = {}
    for row in steps.to_pylist():
        under_way.setdefault(row["plan"], []).append(row)
    for _, rows in sorted(under_way.items()):
        first, last = rows[0], rows[-1]
        result.setdefault(first["device"], deque()).append(
            _Plan(
                number=first["plan"],
                seconds=last["heard_s"] - first["begun_s"],
                steps=len(rows),
                what=(first["model"], first["prompt_tokens"], first["decodes"]),
            )
        )
    return result


def _records_of(prepared: Prepared, world: Backend) -> pa.Table:
    rules = prepared.new_rules()
    fleet, state, pin_counts = prepared.fleet, prepared.new_serving(rules=rules), Counter[int]()
    if fleet.caches_prefixes:  # the table grows with longer prompts
        state = with_blocks(prepared, state, PAGE_TOKENS, 1)
    step = Step(Loop(fleet, rules, state), compiled=True)
    while (event := world.next_event()) is not None:
        if isinstance(event, WeightsHere | ReleaseWeights) and not pin_counts[event.model]:
            continue  # its KeepWeights was granted live but refused here, for lack of room
        pins = _pins(fleet, state, event) if isinstance(event, KeepWeights) else 0
        state, actions = step(state, event)
        if isinstance(event, KeepWeights):
            pin_counts[event.model] += _pins(fleet, state, event) - pins
        elif isinstance(event, ReleaseWeights):
            pin_counts[event.model] -= 1
        world.submit(float(state.count[0].now_s), actions)
    records = np.sort(np.asarray(state.records)[: state.count[0].out], order="id")
    return requests_table(prepared, records.view(np.recarray))


def _pins(fleet: Any, state: Any, event: KeepWeights) -> int:
    return int(state.hold[entry_of(fleet, event.model, event.chip)].pins)


def retell(prepared: Prepared, inputs: Inputs, steps: pa.Table) -> Retold:
    """Run the loop over recorded inputs and seconds."""
    world = _Recorded(prepared, inputs, steps)
    records = _records_of(prepared, world)
    return Retold(requests=inputs.of_served(records), plans=world.plans, equal=world.equal)
