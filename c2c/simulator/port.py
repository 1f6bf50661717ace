"""Simulated backend of the serving loop (`Backend` port)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from c2c.serving import Prepared
from c2c.serving.actions import (
    ACT_HAND,
    ACT_INTERRUPT,
    ACT_LOAD,
    ACT_RELAYOUT,
    ACT_RUN,
    ACT_UNLOAD,
)
from c2c.serving.port import (
    Absent,
    Action,
    Arrival,
    BlocksLost,
    Cancelled,
    DeviceBack,
    DeviceLost,
    Event,
    Forget,
    ForgetBlocks,
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
    Weights,
)
from c2c.simulator.backend import end_phase, submit
from c2c.simulator.carrying import has_come
from c2c.simulator.clients import give_back, new_clients, next_free_s, take_client
from c2c.simulator.events import FLEET, next_end, replay
from c2c.simulator.experts import build_experts
from c2c.simulator.graphs import end_relayout, follow_works
from c2c.simulator.wires import drop_sent
from c2c.simulator.world import Machine, new_world, relayouts_at
from c2c.workloads import ClosedLoop, RequestBlock

__all__ = ["SimulatorBackend"]

Incident = Cancelled | DeviceLost | DeviceBack | BlocksLost | Weights


def _is_of(gone: int, _: int, request: int) -> bool:
    return request == gone


class SimulatorBackend:
    """Virtual clock and cost model as a `c2c.serving.port.Backend`.

    It reads only the port: it keeps its own copy of each device's plan and counts the tokens of
    each request, which ends at its length in `arrivals`.

    Args:
      max_output_tokens: length limits given to the loop; None: the true lengths.
      deadline_s: deadline of each request; None: no deadlines.
      priorities: priority of each request; None: those of the models.
      blocks: keys of each prompt's blocks; None: none has any.
      incidents: cancels, losses of devices or blocks, and pins of weights, by time; none in a
        closed loop.
      loop: clients of a closed loop; None: requests arrive at their times.
    """

    def __init__(
        self,
        prepared: Prepared,
        machine: Machine,
        arrivals: RequestBlock,
        *,
        max_output_tokens: np.ndarray | None = None,
        deadline_s: np.ndarray | None = None,
        priorities: Sequence[int | None] | None = None,
        blocks: Sequence[tuple[int, ...]] | None = None,
        incidents: Sequence[Incident] = (),
        loop: ClosedLoop | None = None,
    ) -> None:
        self._fleet = prepared.fleet
        self._rules = prepared.rules
        self._machine = machine
        self._arrivals = arrivals
        self._told = arrivals.output_tokens if max_output_tokens is None else max_output_tokens
        self._deadline_s = np.full(len(arrivals), np.inf) if deadline_s is None else deadline_s
        self._priorities = priorities
        self._blocks = blocks
        self._incidents = list(incidents)
        self._clients = None if loop is None else new_clients(loop)
        self._next = 0
        self._made = np.zeros(len(arrivals), np.int64)
        self._came_s = np.zeros(len(arrivals))
        self._mirror = prepared.new_serving(slots=len(arrivals) + 1, buffer=1)
        self._world = new_world(machine, self._mirror, 0)
        self._experts = build_experts(prepared, self._mirror)
        self._runs: dict[int, RunSteps] = {}
        self._handed_s: dict[int, float] = {}  # requests that no run has named since, and when
        self._timer_s = self._mirror.timer_s.copy()
        self._ended = -1
        self.got: dict[int, int] = {}  # tokens of the last `StepEnd`, by request

    def submit(self, at_s: float, actions: Sequence[Action]) -> None:
        """Start loads and runs, stop runs; durations follow from the cost tables."""
        mirror = self._mirror
        n = 0
        for action in actions:
            if isinstance(action, SetTimer):
                self._timer_s[action.number] = action.at_s
            elif isinstance(action, Forget | SetAside):  # which take no time
                self._drop(partial(_is_of, action.request_id))
            elif not isinstance(action, Absent | ForgetBlocks):
                mirror.actions[n] = self._write(action, at_s)
                n += 1
        mirror.count[0].actions = n
        submit(
            self._fleet, self._rules, self._machine, mirror, self._world, self._experts,
            self._ended, at_s,
        )  # fmt: skip
        self._ended = -1

    def _write(self, action: Action, at_s: float) -> tuple[int, int]:
        mirror = self._mirror
        if isinstance(action, HandOver):
            req = mirror.request[action.request_id]
            req.instance, req.source = action.instance, action.source
            req.handed_bytes = action.kv_bytes
            self._handed_s[action.request_id] = at_s
            return ACT_HAND, action.request_id
        if isinstance(action, Interrupt):
            return ACT_INTERRUPT, action.device
        if isinstance(action, Relayout):
            mirror.sent_bytes[action.device] = action.sent_bytes
            return ACT_RELAYOUT, action.device
        if isinstance(action, Load):
            plan = mirror.plan[action.device]
            plan.instance = action.instance
            plan.kv_in_bytes, plan.kv_out_bytes = 0.0, action.kv_out_bytes
            mirror.instance[action.instance].model = action.model
            mirror.instance[action.instance].cold = int(action.is_cold)
            return ACT_LOAD, action.device
        if isinstance(action, RunSteps):
            mirror.instance[action.instance].model = action.model
            plan = mirror.plan[action.device]
            mirror.plan[action.device] = tuple(action.plan)  # a record, or a row
            plan.steps = min(plan.steps, self._steps(action))
            if action.split is not None:
                mirror.split[action.device] = action.split
            self._write_batch(action)
            self._runs[action.device] = action
            return ACT_RUN, action.device
        assert not isinstance(action, Absent | SetTimer | Forget | ForgetBlocks | SetAside)
        return ACT_UNLOAD, action.instance

    def _steps(self, run: RunSteps) -> int:
        """Return the number of steps until one of a run's requests ends."""
        lengths, made = self._arrivals.output_tokens, self._made
        return min((int(lengths[r] - made[r]) for r in run.decodes), default=int(run.plan.steps))

    def _write_batch(self, run: RunSteps) -> None:
        """Record the requests of a step and the positions of their tokens.

        Needed by expert caches, and by engines that take turns for the time since which they have
        work.
        """
        mirror, inst = self._mirror, self._mirror.instance[run.instance]
        inst.n_prefill, inst.n_decode = len(run.prefills), len(run.decodes)
        came = [self._handed_s.pop(r) for r in run.decodes if r in self._handed_s]
        if came and len(came) == len(run.decodes) and not run.prefills:
            inst.last_step_s = came[0]  # since then there has been work
        for k, (request, first, tokens) in enumerate(run.prefills):
            mirror.prefilling[run.instance, k] = request
            req = mirror.request[request]
            req.id, req.prefilled, req.step_tokens = request, first, tokens
            req.prompt = first + tokens  # as far as it is known
            req.arrival_s = self._came_s[request]
        for k, request in enumerate(run.decodes):
            length = self._arrivals.prompt_tokens[request] + self._made[request]
            mirror.decoding[run.instance, k] = request, inst.decode_clock, length
            mirror.request[request].id = request

    def next_event(self, until_s: float = math.inf) -> Event | None:
        """Return the next event; at equal times phase ends, timers, incidents, arrivals.

        Args:
          until_s: time limit; later events are left for a later call.
        """
        arrives_s = math.inf
        if self._next < len(self._arrivals):
            arrives_s = self._arrives_s()
        happens_s = self._happens_s()
        timer = int(np.argmin(self._timer_s))
        others_s = min(self._timer_s[timer], happens_s, arrives_s)
        while True:
            d, ends_s = self._next_end()
            if ends_s > min(others_s, until_s) or ends_s == math.inf:
                break
            if d >= len(self._world.phase):
                return self._carried(d - len(self._mirror.device), ends_s)
            if not self._works_follow(d, ends_s):
                return self._end(d, ends_s)
        at_s = others_s
        if at_s > until_s:
            return None
        if min(ends_s, self._timer_s[0], happens_s, arrives_s) == math.inf:
            return None
        if at_s == self._timer_s[timer]:
            self._timer_s[timer] = math.inf
            return Timer(at_s=float(at_s), number=timer)
        if at_s == happens_s:
            return self._happen(self._incidents.pop(0))
        return self._arrive(at_s)

    def _happens_s(self) -> float:
        return self._incidents[0].at_s if self._incidents else math.inf

    def _next_end(self) -> tuple[int, float]:
        """Return the row of the tournament that ends first, and its time; inf: no phase runs."""
        d, ends_s = next_end(self._world.tournament, FLEET)
        return int(d), float(ends_s)

    def _works_follow(self, d: int, at_s: float) -> bool:
        if self._world.phase[d].works <= 1:
            return False
        return bool(follow_works(self._rules, self._machine, self._mirror, self._world, d, at_s))

    def _arrives_s(self) -> float:
        if self._clients is not None:
            return next_free_s(self._clients)
        return float(self._arrivals.arrival_s[self._next])

    def _arrive(self, at_s: float) -> Arrival:
        block, k = self._arrivals, self._next
        self._next += 1
        self._came_s[k] = at_s
        if self._clients is not None:
            take_client(self._clients)
            if self._is_refused(k):  # which no action says
                give_back(self._clients, 1, at_s)
        return Arrival(
            at_s=at_s,
            request_id=k,
            model=int(block.model[k]),
            prompt_tokens=int(block.prompt_tokens[k]),
            max_output_tokens=int(self._told[k]),
            priority=None if self._priorities is None else self._priorities[k],
            deadline_s=float(self._deadline_s[k]),
            blocks=() if self._blocks is None else self._blocks[k],
        )

    def _is_refused(self, k: int) -> bool:
        """Return True if no device can ever serve a request, which is then answered at once."""
        fleet, block = self._fleet, self._arrivals
        deployment = fleet.deployment[block.model[k]]
        tokens = int(block.prompt_tokens[k]) + int(self._told[k])
        most = min(int(deployment.max_context), int(fleet.kv_capacity[deployment.arch].max()))
        return tokens > most

    def _carried(self, d: int, at_s: float) -> HandedOver:
        request = has_come(self._mirror, self._world, d)
        self._handed_s[request] = at_s
        self._ended = d
        return HandedOver(at_s=at_s, request_id=request)

    def _drop(self, goes: Callable[[int, int], bool]) -> None:
        """Remove KV caches that no request waits for from the wires, by device and request."""
        mirror, world = self._mirror, self._world
        wires = len(world.wires.wire)
        for d in range(wires):
            world.end_s[wires + d] = drop_sent(world.wires, d, goes)
            c = mirror.device[d].chip
            chip = mirror.chip[c]
            replay(world.tournament, c, world.end_s, chip.first, chip.last, wires)

    def _happen(self, incident: Incident) -> Event:
        if isinstance(incident, DeviceLost):
            self._drop(lambda d, _: d == incident.device)
            row = relayouts_at(self._mirror, self._world) + incident.device
            if row >= len(self._mirror.device) and self._world.busy[row]:
                self._ended = end_relayout(
                    self._rules, self._mirror, self._world, row, incident.at_s
                )
        if isinstance(incident, DeviceLost) and self._world.busy[incident.device]:
            end_phase(
                self._rules,
                self._machine,
                self._mirror,
                self._world,
                incident.device,
                incident.at_s,
            )
            self._ended = incident.device
        return incident

    def _end(self, d: int, at_s: float) -> Event:
        if d >= len(self._mirror.device):
            self._ended = end_relayout(self._rules, self._mirror, self._world, d, at_s)
            return Relaid(at_s=at_s, device=self._ended)
        was_load = end_phase(self._rules, self._machine, self._mirror, self._world, d, at_s)
        self._ended = d
        if was_load:
            available = float(self._mirror.report[d].available_gbps)
            return Ready(at_s=at_s, device=d, available_gbps=available)
        self._mirror.instance[self._mirror.plan[d].instance].last_step_s = at_s
        report = self._mirror.report[d].copy()
        finished = self._finished(d, report.steps)
        if self._clients is not None:
            give_back(self._clients, len(finished), at_s)
        return StepEnd(at_s=at_s, device=d, report=report, finished=finished)

    def _finished(self, d: int, steps: int) -> tuple[int, ...]:
        run = self._runs[d]
        got = self.got = dict.fromkeys(run.decodes, int(steps))
        for request, first, tokens in run.prefills:
            # What it made before a device was lost has become the end of its prompt.
            if first + tokens == self._arrivals.prompt_tokens[request] + self._made[request]:
                got[request] = 1
        for request, tokens in got.items():
            self._made[request] += tokens
        lengths = self._arrivals.output_tokens
        return tuple(r for r in got if self._made[r] >= lengths[r])
