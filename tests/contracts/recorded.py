"""Events of the port, recorded from what the simulator's event loop meets."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any
from unittest import mock

from c2c.serving import FAIL_CANCELLED, FAIL_NONE, Prepared, events
from c2c.serving.step_report import ends_prompt
from c2c.serving.tables.batch import tokens_left
from c2c.serving.tables.port import (
    Action,
    Arrival,
    Cancelled,
    DeviceBack,
    DeviceLost,
    Event,
    HandedOver,
    Ready,
    Relaid,
    StepEnd,
    Timer,
)
from c2c.serving.tables.state import NOBODY, SLOT, Loop
from c2c.simulator import build_machine, core, run
from c2c.simulator.run import Simulation
from c2c.workloads import RequestBlock

__all__ = ["Recorded", "events_of"]


def _finished(w: Loop, d: int) -> tuple[int, ...]:
    """Return the requests that end with the reported steps of device `d`."""
    s, plan, steps = w.s, w.s.plan[d], w.s.report[d].steps
    i = plan.instance
    slots = [s.decoding[i, k, SLOT] for k in range(plan.decodes) if tokens_left(s, i, k) == steps]
    prompts = s.prefilling[i, : s.instance[i].n_prefill]
    slots += [k for k in prompts if ends_prompt(s, k) and s.request[k].output == 1]
    return tuple(int(s.request[k].id) for k in slots)


class _Recorder:
    """Functions in place of the event loop's, which note an event and call these."""

    def __init__(self, block: RequestBlock) -> None:
        self.block = block
        self.events: list[Event] = []

    def _wish(self, name: str, request: int, default: Any) -> Any:
        column = getattr(self.block, name)
        return default if column is None else column[request].item()

    def on_arrival(
        self, w: Loop, now_s: float, request: int, m: int, prompt: int, limit: int, *_: Any
    ) -> Iterator[Event]:
        keys = self.block.hashes()
        yield Arrival(
            at_s=float(now_s), request_id=int(request), model=int(m), prompt_tokens=int(prompt),
            max_output_tokens=int(limit), priority=self._wish("priority", request, None),
            deadline_s=self._wish("deadline_s", request, math.inf),
            calls_tool=self._wish("calls_tool", request, False),
            blocks=() if keys is None else tuple(keys.values[slice(*keys.first[request:][:2])]),
        )  # fmt: skip

    def on_step_end(self, w: Loop, d: int, now_s: float) -> Iterator[Event]:
        yield StepEnd(
            at_s=float(now_s), device=int(d), report=w.s.report[d].copy(), finished=_finished(w, d)
        )

    def on_ready(self, w: Loop, d: int, now_s: float) -> Iterator[Event]:
        available = float(w.s.report[d].available_gbps)
        yield Ready(at_s=float(now_s), device=int(d), available_gbps=available)

    def on_carried(self, w: Loop, slot: int, now_s: float) -> Iterator[Event]:
        yield HandedOver(at_s=float(now_s), request_id=int(w.s.request[slot].id))

    def end_relayout(self, _: Any, s: Any, __: Any, d: int, now_s: float) -> Iterator[Event]:
        yield Relaid(at_s=float(now_s), device=int(d) - len(s.device))

    def answer_timer(self, w: Loop, number: int, now_s: float) -> Iterator[Event]:
        yield Timer(at_s=float(now_s), number=int(number))

    def on_due(self, w: Loop, now_s: float) -> Iterator[Event]:
        for req in w.s.request:
            is_due = req.id != NOBODY and req.ending == FAIL_NONE and req.ends_by_s <= now_s
            if is_due and req.late_as == FAIL_CANCELLED:
                yield Cancelled(at_s=float(now_s), request_id=int(req.id))
        yield Timer(at_s=float(now_s), number=0)

    def lose_devices(self, w: Loop, devices: Sequence[int], now_s: float) -> Iterator[Event]:
        for d in devices:
            yield DeviceLost(at_s=float(now_s), device=int(d))

    def bring_back(self, w: Loop, d: int, now_s: float) -> Iterator[Event]:
        yield DeviceBack(at_s=float(now_s), device=int(d))

    def end_request(self, w: Loop, slot: int, _: int, now_s: float) -> Iterator[Event]:
        yield Cancelled(at_s=float(now_s), request_id=int(w.s.request[slot].id))

    def instead(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def noted(*args: Any) -> Any:
            self.events += getattr(self, name)(*args)
            return function(*args)

        return noted


_IN_CORE = (
    "on_arrival", "on_step_end", "on_ready", "on_carried", "end_relayout", "answer_timer",
    "on_due",
)  # fmt: skip
_IN_RUN = ("on_step_end", "lose_devices", "bring_back", "end_request")


def events_of(prepared: Prepared, block: RequestBlock, **start: Any) -> list[Event]:
    """Return the events of a simulation of a block, interpreted."""
    recorder, simulation = (
        _Recorder(block),
        Simulation.start(prepared, build_machine(prepared), compiled=False, **start),
    )
    with ExitStack() as stack:
        for module, names in ((core, _IN_CORE), (run, _IN_RUN), (events, ("bring_back",))):
            for name in names:
                function = recorder.instead(name, getattr(module, name))
                stack.enter_context(mock.patch.object(module, name, function))
        simulation.feed(block, lambda _: None, is_last=True)
    return recorder.events


class Recorded:
    """A backend that repeats the events of a simulation, whatever is asked."""

    def __init__(self, prepared: Prepared, block: RequestBlock, **start: Any) -> None:
        self._events = iter(events_of(prepared, block, **start))

    def next_event(self) -> Event | None:
        """Return the next event."""
        return next(self._events, None)

    def submit(self, at_s: float, actions: Sequence[Action]) -> None:
        """Do nothing: the events are those of a loop that asked the same."""
