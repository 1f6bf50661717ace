"""The simulated world behind the serving loop's `Backend` port."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from c2c.serving import Prepared, new_serving
from c2c.serving.batching import ACT_INTERRUPT, ACT_LOAD, ACT_RUN
from c2c.serving.loop import Action, Arrival, Event, Interrupt, Load, Ready, RunSteps, StepEnd
from c2c.simulator.backend import Machine, end_phase, new_world, rebalance, submit
from c2c.simulator.events import next_instance
from c2c.workloads import RequestBlock

__all__ = ["SimulatorBackend"]


class SimulatorBackend:
    """Virtual clock and cost model as a `c2c.serving.loop.Backend`.

    Sees only what the port hands over: it keeps its own copy of each instance's plan.
    """

    def __init__(self, prepared: Prepared, machine: Machine, arrivals: RequestBlock) -> None:
        self._fleet = prepared.fleet
        self._machine = machine
        self._arrivals = arrivals
        self._next = 0
        self._mirror = new_serving(
            prepared.fleet,
            prepared.chip_of,
            prepared.kind_of,
            prepared.budget_gbps,
            in_host=prepared.in_host,
            slots=1,
        )
        self._world = new_world(self._mirror, 0)
        self._ended: tuple[int, float] | None = None

    def submit(self, at_s: float, actions: Sequence[Action]) -> None:
        """Start loads and runs, stop runs; durations follow from the cost tables."""
        mirror = self._mirror
        for n, action in enumerate(actions):
            mirror.actions[n] = (self._write(action), action.instance)
        mirror.count[0].actions = len(actions)
        submit(self._fleet, self._machine, mirror, self._world, at_s)
        if self._ended is not None:
            chip = mirror.instance[self._ended[0]].chip
            if self._world.link[chip].dirty:
                rebalance(self._machine, mirror, self._world, chip, self._ended[1])
            self._ended = None

    def _write(self, action: Action) -> int:
        inst = self._mirror.instance[action.instance]
        if isinstance(action, Interrupt):
            return ACT_INTERRUPT
        inst.model = action.model
        if isinstance(action, Load):
            inst.cold = int(action.is_cold)
            return ACT_LOAD
        _write_plan(inst, action)
        return ACT_RUN

    def next_event(self) -> Event | None:
        """Return the next arrival or phase end; at equal times phase ends come first."""
        i = next_instance(self._world.tree)
        ends_s = float(self._world.end_s[i])
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
        was_load = end_phase(self._machine, self._mirror, self._world, i, ends_s)
        self._ended = (i, ends_s)
        inst = self._mirror.instance[i]
        if was_load:
            return Ready(at_s=ends_s, instance=i)
        return StepEnd(
            at_s=ends_s,
            instance=i,
            steps=int(inst.ran_steps),
            latency_s=float(inst.ran_latency_s),
            hbm_utilisation=float(inst.ran_hbm),
            c2c_utilisation=float(inst.ran_c2c),
            available_gbps=float(inst.available_gbps),
            link_bytes=float(inst.ran_link_bytes),
            hbm_bytes=float(inst.ran_hbm_bytes),
        )


def _write_plan(inst: np.record, action: RunSteps) -> None:
    inst.plan_steps = action.steps
    inst.plan_alpha = action.alpha_index
    inst.plan_part = action.part
    inst.plan_parts = action.parts
    inst.plan_prefill = action.prefill_tokens
    inst.plan_prefills = len(action.requests_prefill)
    inst.plan_pairs = action.prefill_pairs
    inst.plan_prefill_kv = action.prefill_kv_tokens
    inst.plan_decodes = len(action.requests_decode)
    inst.plan_decode_kv = action.decode_kv_tokens
    inst.plan_growth = action.kv_growth
    inst.plan_rows = action.logit_rows
