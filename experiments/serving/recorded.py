"""A live run once more with the seconds that it took, plan by plan: only the clock is virtual.

What is left between the two is what the loop decided otherwise: nothing, if what it sees is all
that it decides by.
"""

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
from c2c.serving.loop import run
from c2c.serving.port import Action, Arrival, Event, Load, Ready, RunSteps, StepEnd
from c2c.serving.rows import as_rows, new_row
from c2c.serving.state import REPORT_DTYPE
from c2c.simulator import requests_table

__all__ = ["Retold", "retell"]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    seconds: float
    steps: int
    what: tuple[str, int, int]  # model, prompt tokens, rows that decode; of a load without both


@dataclass(frozen=True, slots=True, kw_only=True)
class Retold:
    """Records of the run, and how many plans there were, and how many of them as recorded."""

    requests: pa.Table
    plans: int
    equal: int


class _Recorded:
    """The world as it was: a `c2c.serving.port.Backend`."""

    def __init__(self, prepared: Prepared, requests: pa.Table, steps: pa.Table) -> None:
        self._names = [d.name for d in prepared.setup.deployments]
        self._gbps = prepared.link_capacity_gbps / len(prepared.chip_of)
        self._requests = requests.to_pylist()
        self._made: Counter[int] = Counter()
        self._plans = _plans(steps)
        self._later: list[tuple[float, int, Event]] = []
        self._next = 0
        self.plans = self.equal = 0

    def submit(self, at_s: float, actions: Sequence[Action]) -> None:
        for action in actions:
            if isinstance(action, Load | RunSteps):
                self._begin(action, at_s)

    def _begin(self, action: Load | RunSteps, at_s: float) -> None:
        d = action.device
        if not self._plans.get(d):
            raise DataError(f"plans of worker {d}", "the loop asks for more than were recorded")
        was = self._plans[d].popleft()
        end_s = at_s + was.seconds
        name = self._names[action.model]
        event: Event
        if isinstance(action, Load):
            what = (name, 0, 0)
            event = Ready(at_s=end_s, device=d, available_gbps=self._gbps)
        else:
            what = (name, sum(n for *_, n in action.prefills), len(action.decodes))
            event = self._end(action, was, end_s)
        self.plans += 1
        self.equal += what == was.what
        heapq.heappush(self._later, (end_s, d, event))

    def _end(self, action: RunSteps, was: _Plan, end_s: float) -> StepEnd:
        left = [self._left(request) for request in action.decodes]
        steps = max(1, min([was.steps, *left])) if not action.prefills else 1
        got = dict.fromkeys(action.decodes, steps)
        for request, first, tokens in action.prefills:
            if first + tokens == self._requests[request]["prompt_tokens"]:
                got[request] = 1
        self._made.update(got)
        report = new_row(
            REPORT_DTYPE, steps=steps, latency_s=was.seconds / steps, available_gbps=self._gbps
        )
        finished = tuple(request for request in got if not self._left(request))
        return StepEnd(at_s=end_s, device=action.device, report=report, finished=finished)

    def _left(self, request: int) -> int:
        return int(self._requests[request]["output_tokens"]) - self._made[request]

    def next_event(self) -> Event | None:
        ends_s = self._later[0][0] if self._later else math.inf
        if self._next < len(self._requests):
            row = self._requests[self._next]
            if row["arrival_s"] < ends_s:
                self._next += 1
                return Arrival(
                    at_s=row["arrival_s"],
                    request_id=self._next - 1,
                    model=self._names.index(row["model"]),
                    prompt_tokens=row["prompt_tokens"],
                    max_output_tokens=row["output_tokens"],
                )
        return heapq.heappop(self._later)[2] if self._later else None


def _plans(steps: pa.Table) -> dict[int, deque[_Plan]]:
    """Return what each worker did, in its order."""
    found: dict[int, deque[_Plan]] = {}
    under_way: dict[int, list[dict[str, Any]]] = {}
    for row in steps.to_pylist():
        under_way.setdefault(row["plan"], []).append(row)
    for _, rows in sorted(under_way.items()):
        first, last = rows[0], rows[-1]
        found.setdefault(first["device"], deque()).append(
            _Plan(
                seconds=last["heard_s"] - first["begun_s"],
                steps=len(rows),
                what=(first["model"], first["prompt_tokens"], first["decodes"]),
            )
        )
    return found


def retell(prepared: Prepared, requests: pa.Table, steps: pa.Table) -> Retold:
    """Run the loop over the arrivals and the recorded seconds of a live run.

    Args:
      prepared: of the run.
      requests: its records by arrival, all served to their end.
      steps: its steps.

    Raises:
      DataError: the loop goes another way than it did.
    """
    world = _Recorded(prepared, requests, steps)
    rules = prepared.new_rules()
    start = as_rows(prepared.new_serving(rules=rules))
    state = run(as_rows(prepared.fleet), rules, start, world)
    records = np.sort(np.asarray(state.records)[: state.count[0].out], order="id")
    table = requests_table(prepared, records.view(np.recarray))
    return Retold(requests=table, plans=world.plans, equal=world.equal)
