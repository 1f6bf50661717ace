"""The simulated world behind the serving loop's `Backend` port."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from c2c.serving import Prepared
from c2c.serving.actions import ACT_INTERRUPT, ACT_LOAD, ACT_RUN, ACT_UNLOAD
from c2c.serving.port import Action, Arrival, Event, Interrupt, Load, Ready, RunSteps, StepEnd
from c2c.simulator.backend import Machine, end_phase, new_world, rebalance, submit
from c2c.simulator.events import next_device
from c2c.workloads import RequestBlock

__all__ = ["SimulatorBackend"]


class SimulatorBackend:
    """Virtual clock and cost model as a `c2c.serving.port.Backend`.

    Sees only what the port hands over: it keeps its own copy of each device's plan.
    """

    def __init__(self, prepared: Prepared, machine: Machine, arrivals: RequestBlock) -> None:
        self._fleet = prepared.fleet
        self._machine = machine
        self._arrivals = arrivals
        self._next = 0
        self._mirror = prepared.new_serving(slots=1, buffer=1)
        self._world = new_world(self._mirror, 0)
        self._ended: tuple[int, float] | None = None

    def submit(self, at_s: float, actions: Sequence[Action]) -> None:
        """Start loads and runs, stop runs; durations follow from the cost tables."""
        mirror = self._mirror
        for n, action in enumerate(actions):
            mirror.actions[n] = self._write(action)
        mirror.count[0].actions = len(actions)
        submit(self._fleet, self._machine, mirror, self._world, at_s)
        if self._ended is not None:
            chip = mirror.device[self._ended[0]].chip
            if self._world.link[chip].dirty:
                rebalance(self._machine, mirror, self._world, chip, self._ended[1])
            self._ended = None

    def _write(self, action: Action) -> tuple[int, int]:
        mirror = self._mirror
        if isinstance(action, Interrupt):
            return ACT_INTERRUPT, action.device
        if not isinstance(action, Load | RunSteps):
            return ACT_UNLOAD, action.instance
        mirror.plan[action.device].instance = action.instance
        inst = mirror.instance[action.instance]
        inst.model = action.model
        if isinstance(action, Load):
            inst.cold = int(action.is_cold)
            return ACT_LOAD, action.device
        mirror.plan[action.device] = action.plan
        return ACT_RUN, action.device

    def next_event(self) -> Event | None:
        """Return the next arrival or phase end; at equal times phase ends come first."""
        d = next_device(self._world.tree)
        ends_s = float(self._world.end_s[d])
        block, k = self._arrivals, self._next
        if k < len(block) and block.arrival_s[k] < ends_s:
            self._next += 1
            return Arrival(
                at_s=float(block.arrival_s[k]),
                request_id=k,
                model=int(block.model[k]),
                prompt_tokens=int(block.prompt_tokens[k]),
                output_tokens=int(block.output_tokens[k]),
            )
        if np.isinf(ends_s):
            return None
        was_load = end_phase(self._machine, self._mirror, self._world, d, ends_s)
        self._ended = (d, ends_s)
        if was_load:
            return Ready(at_s=ends_s, device=d)
        return StepEnd(at_s=ends_s, device=d, report=self._mirror.report[d].copy())
