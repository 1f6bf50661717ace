"""A backend that does everything late and odd that the port allows; it costs no model of time."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import replace
from itertools import count

import numpy as np

from c2c.serving.port import (
    Action,
    Arrival,
    Cancelled,
    DeviceLost,
    Event,
    Forget,
    HandedOver,
    HandOver,
    Interrupt,
    Load,
    Ready,
    Relaid,
    Relayout,
    RunSteps,
    SetAside,
    SetTimer,
    StepEnd,
    Timer,
    new_report,
)
from c2c.workloads import RequestBlock

__all__ = ["StubbornBackend"]


class StubbornBackend:
    """Random durations and ends; interrupts that come late; cancels; lost devices; a bad clock.

    Args:
      arrivals: `output_tokens` are bounds: where a request really ends is drawn.
      cancel: share of the requests that are cancelled.
      lose: devices that are lost at random times.
      jump_s: how far the clock that stamps the events jumps to and fro.
      tell: share of the ends at the bound that are reported.
    """

    def __init__(
        self,
        arrivals: RequestBlock,
        *,
        seed: int,
        cancel: float,
        lose: Sequence[int],
        deadline: float,
        jump_s: float,
        tell: float,
    ) -> None:
        g = self._g = np.random.default_rng(seed)
        n = len(arrivals)
        self._bound = arrivals.output_tokens
        self._length = np.where(g.random(n) < 0.5, self._bound, g.integers(1, self._bound + 1))
        self._prompt = arrivals.prompt_tokens
        self._made = np.zeros(n, np.int64)
        self._reported = g.random(n) < tell
        self._jump_s = jump_s
        self._order = count()
        self._later: list[tuple[float, int, Event]] = []
        self._runs: dict[int, tuple[int, RunSteps]] = {}  # device: number of its event, the run
        self._timer = -1
        self._lost: set[int] = set()
        self._carried: dict[int, tuple[int, HandOver]] = {}  # by request, as `_runs`
        self._now_s = 0.0
        end_s = float(arrivals.arrival_s[-1]) if n else 1.0
        for k in range(n):
            at_s = float(arrivals.arrival_s[k])
            late = float(g.exponential(5.0)) if g.random() < deadline else np.inf
            self._send(
                at_s,
                Arrival(
                    at_s=at_s,
                    request_id=k,
                    model=int(arrivals.model[k]),
                    prompt_tokens=int(self._prompt[k]),
                    max_output_tokens=int(self._bound[k]),
                    deadline_s=late + 1e-9,
                    priority=int(g.integers(0, 3)) if g.random() < 0.7 else None,
                ),
            )
            if g.random() < cancel:  # also before its arrival, and after its end
                when = at_s + float(g.exponential(4.0)) - 0.3
                self._send(when, Cancelled(at_s=when, request_id=k))
        self._send(0.5, Cancelled(at_s=0.5, request_id=n + 7))
        for d in lose:
            when = float(g.uniform(0.0, 1.2 * end_s))
            self._send(when, DeviceLost(at_s=when, device=d))

    def _send(self, at_s: float, event: Event) -> int:
        number = next(self._order)
        heapq.heappush(self._later, (at_s, number, event))
        return number

    def submit(self, at_s: float, actions: Sequence[Action]) -> None:
        """Start what is asked, at random speed."""
        g, now_s = self._g, self._now_s
        for action in actions:
            if isinstance(action, SetTimer):
                when = max(now_s, action.at_s) + float(g.exponential(0.5)) * (g.random() < 0.7)
                if g.random() < 0.1:  # needlessly early
                    when = now_s
                self._timer = self._send(when, Timer(at_s=when))
            elif isinstance(action, Load):
                when = now_s + float(g.exponential(0.5))
                gbps = float(g.uniform(1.0, 500.0))
                self._send(when, Ready(at_s=when, device=action.device, available_gbps=gbps))
            elif isinstance(action, Relayout):
                when = now_s + float(g.exponential(0.5))
                self._send(when, Relaid(at_s=when, device=action.device))
            elif isinstance(action, HandOver) and action.directly:
                when = now_s + float(g.exponential(0.1))
                number = self._send(when, HandedOver(at_s=when, request_id=action.request_id))
                self._carried[action.request_id] = number, action
            elif isinstance(action, Forget | SetAside):
                self._carried.pop(action.request_id, None)
            elif isinstance(action, RunSteps):
                self._start(action)
            elif isinstance(action, Interrupt) and g.random() < 0.8:
                self._interrupt(action.device)

    def _start(self, run: RunSteps) -> None:
        left = [int(self._length[r] - self._made[r]) for r in run.decodes]
        steps = min([int(run.plan.steps), *left])
        seconds = float(self._g.exponential(0.02 if run.prefills else 0.01)) * steps
        self._end(run, steps, self._now_s + seconds)

    def _end(self, run: RunSteps, steps: int, at_s: float) -> None:
        g = self._g
        report = new_report(
            steps=steps,
            latency_s=float(g.exponential(0.05)),
            hbm=float(g.random()),
            c2c=float(g.random()),
            available_gbps=float(g.uniform(1.0, 500.0)),
        )
        event = StepEnd(at_s=at_s, device=run.device, report=report)
        self._runs[run.device] = (self._send(at_s, event), run)

    def _interrupt(self, d: int) -> None:
        number, run = self._runs[d]
        found = next(e for e in self._later if e[1] == number)
        assert isinstance(found[2], StepEnd)
        self._later.remove(found)
        heapq.heapify(self._later)
        steps = int(self._g.integers(1, found[2].report.steps + 1))
        self._end(run, steps, self._now_s + float(self._g.random()) * (found[0] - self._now_s))

    def next_event(self) -> Event | None:
        """Return the next event, stamped by the bad clock."""
        while self._later:
            at_s, number, event = heapq.heappop(self._later)
            self._now_s = max(self._now_s, at_s)
            if isinstance(event, Timer) and number != self._timer:
                continue  # another one took its place
            if isinstance(event, HandedOver):
                sent, action = self._carried.get(event.request_id, (-1, None))
                if sent != number or action is None:
                    continue
                del self._carried[event.request_id]
                if self._lost & {action.source, action.device}:
                    continue
            if isinstance(event, StepEnd):
                event = replace(event, finished=self._finished(event))
            if isinstance(event, DeviceLost):
                self._lost.add(event.device)
            stamp = at_s + self._jump_s * float(self._g.normal())
            return replace(event, at_s=stamp)
        return None

    def _finished(self, event: StepEnd) -> tuple[int, ...]:
        run = self._runs[event.device][1]
        if event.device in self._lost:
            return ()
        got = dict.fromkeys(run.decodes, int(event.report.steps))
        for request, first, tokens in run.prefills:
            if first + tokens == self._prompt[request] + self._made[request]:
                got[request] = 1
        for request, tokens in got.items():
            self._made[request] += tokens
        ended = [r for r in got if self._made[r] >= self._length[r]]
        return tuple(r for r in ended if self._length[r] < self._bound[r] or self._reported[r])
