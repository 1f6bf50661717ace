"""Driver of the event loop over blocks of arrivals."""

from __future__ import annotations

from bisect import insort
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from c2c.compiling.mistakes import policy_error
from c2c.serving import FAIL_CANCELLED, Prepared, start_asked
from c2c.serving.batches.timers import has_timers
from c2c.serving.device_loss import bring_back, lose_devices, lose_memory
from c2c.serving.early_end import end_request, slot_of
from c2c.serving.events import BACK, HERE, KEEP, LOSS, RELEASE, apply_rare, is_lost
from c2c.serving.loop import row_of
from c2c.serving.prepare.prefixes import with_blocks
from c2c.serving.step import on_step_end
from c2c.serving.tables.port import BlocksLost, Cancelled, DeviceBack, DeviceLost, Weights
from c2c.serving.tables.state import Loop, Rules, Serving
from c2c.serving.tables.table_growth import grow_records, grow_requests
from c2c.simulator.arrivals.clients import Clients, give_back, new_clients
from c2c.simulator.arrivals.groups import Ranges, ranges_of
from c2c.simulator.arrivals.sessions import (
    Sessions,
    begin_turns,
    new_sessions,
    turns_ended,
)
from c2c.simulator.backend import end_phase, submit
from c2c.simulator.compiled_loop import compiled_drive
from c2c.simulator.core import DRAINED, NEED_SLOTS, OUTSIDE_DUE, RECORDS_FULL, Arrivals, drive
from c2c.simulator.expert_cache.expert_state import Experts
from c2c.simulator.expert_cache.experts import build_experts
from c2c.simulator.failures import FailureSchedule, has_steps_done, lose_phase
from c2c.simulator.lengths import end_by_length
from c2c.simulator.run_stats import RunStats, stats_of
from c2c.simulator.works.events import FLEET, next_end
from c2c.simulator.works.graphs import end_relayout
from c2c.simulator.works.kv_transfers import clear_wire
from c2c.simulator.works.wires import EVERYBODY
from c2c.simulator.works.world import Machine, World, new_world, relayouts_at
from c2c.workloads import WISHES, ClosedLoop, RequestBlock, concatenate

__all__ = ["Incident", "RunStats", "Simulation", "run_blocks"]

Incident = Cancelled | DeviceLost | DeviceBack | BlocksLost | Weights


@dataclass(slots=True)
class Simulation:
    """A run: state and world, and the timeline's phases."""

    prepared: Prepared
    rules: Rules
    machine: Machine
    state: Serving
    world: World
    experts: Experts
    clients: Clients
    sessions: Sessions
    failures: FailureSchedule
    ranges: Ranges
    compiled: bool
    timeline_rows: int = 0
    next_id: int = 0
    done: bool = False
    incidents: list[Incident] = field(default_factory=list)
    pinned: Counter[tuple[int, int]] = field(default_factory=Counter)  # times, by model and chip
    _drive: Callable[..., int] | None = None

    @classmethod
    def start(
        cls,
        prepared: Prepared,
        machine: Machine,
        *,
        loop: ClosedLoop | None = None,
        compiled: bool = True,
        timeline_rows: int = 0,
        buffer: int = 65536,
        models: Sequence[int] | None = None,
        incidents: Sequence[Incident] = (),
    ) -> Simulation:
        """Return a simulation at time 0.

        Args:
          loop: clients; None: an open loop.
          models: requested ones; None: all.
          incidents: cancels, losses and pins, by time.
        """
        state = prepared.new_serving(buffer=buffer, models=models, active=False)
        failures = FailureSchedule(prepared, prepared.chips_of(models))
        ranges = ranges_of(prepared)
        world = new_world(machine, state, timeline_rows, ranges.first_chip)
        simulation = cls(
            prepared=prepared,
            rules=prepared.new_rules(),
            machine=machine,
            state=state,
            world=world,
            experts=build_experts(prepared, state),
            clients=new_clients(loop),
            sessions=new_sessions(),
            failures=failures,
            ranges=ranges,
            compiled=compiled,
            timeline_rows=timeline_rows,
            incidents=list(incidents),
        )
        simulation._look_outside()
        return simulation

    @property
    def w(self) -> Loop:
        """The loop over the present state."""
        return Loop(self.prepared.fleet, self.rules, self.state)

    def feed(
        self,
        block: RequestBlock,
        on_records: Callable[[Any], None],
        *,
        is_last: bool = False,
        until_s: float | None = None,
    ) -> None:
        """Simulate a block of arrivals; copies of finished requests go to `on_records`.

        Args:
          is_last: whether to finish all work.
          until_s: end of passed records; None: the last arrival.

        Raises:
          PolicyError: an outside policy failed.
        """
        self._allow(block)
        order, until = self._by_group(block)
        ids = self._ids(block)
        is_whole = is_last and self.next_id == 0
        if block.think_s is not None and is_whole:
            is_closed = len(self.clients.free_s) > 0
            self.sessions = begin_turns(block, ids, is_closed=is_closed)
        arrivals = self._arrivals(block, ids, order, until)
        is_open = len(block) > 0 and len(self.clients.free_s) == 0
        last_s = float(block.arrival_s[-1]) if is_open else -np.inf
        if until_s is not None:
            last_s = max(last_s, np.nextafter(until_s, np.inf))
        in_groups: list[Any] = []  # of groups, one after another
        cursor = np.zeros(2, np.int64)
        while True:
            arguments: Any = (
                self.w,
                self.machine,
                self.world,
                self.experts,
                arrivals,
                cursor,
                last_s,
                is_last,
                self.clients,
                self.sessions,
            )
            why = self._driven(arguments)
            n_out = int(self.state.count[0].out)
            is_wanted = why == RECORDS_FULL or is_last or until_s is not None
            if n_out > 0 and (is_wanted or len(until) > 1):
                records = self.state.records[:n_out].copy()
                (on_records if len(until) == 1 else in_groups.append)(records)
                self.state.count[0].out = 0
            if why == OUTSIDE_DUE:
                self._act_outside(is_over=is_last and cursor[0] == len(block))
            elif why == NEED_SLOTS:
                self.state = grow_requests(self.state, len(self.state.request))
            elif why != RECORDS_FULL:
                break
        if in_groups:
            records = np.concatenate(in_groups)
            on_records(records[np.argsort(records["finished_s"], kind="stable")])
        if len(block):
            self.next_id = int(ids[-1]) + 1
        if why == DRAINED:
            self.done = True
            count = self.state.count
            backlog = count[0].arrived - count[0].finished - count[0].failed
            if backlog != 0:
                lost = RuntimeError(f"{backlog} of {count[0].arrived} requests were never served")
                raise policy_error(lost, self.rules)

    def _allow(self, block: RequestBlock) -> None:
        fleet, machine = self.prepared.fleet, self.machine
        if (block.deadline_s is not None or block.cancel_s is not None) and not fleet.gives_up:
            self.prepared = replace(self.prepared, fleet=fleet._replace(gives_up=True))
            self._drive = None
        if block.max_output_tokens is not None and not machine.cuts_runs:
            self.machine = machine._replace(cuts_runs=True)
            self._drive = None

    def _arrivals(
        self, block: RequestBlock, ids: np.ndarray, order: Any, until: np.ndarray
    ) -> Arrivals:
        n = len(block)
        kinds = {"priority": np.int64, "deadline_s": np.float64, "cancel_s": np.float64}
        rows = n if any(getattr(block, name) is not None for name in kinds) else 0

        def column(name: str) -> np.ndarray:
            values = getattr(block, name)
            if values is None:
                return np.full(rows, WISHES[name], kinds[name])
            return np.ascontiguousarray(values[order], kinds[name])

        none = np.zeros(0, np.int64)
        limit, tool = block.max_output_tokens, block.calls_tool
        first, count, prompt, keys = self._blocks(block, order)
        return Arrivals(
            arrival_s=np.ascontiguousarray(block.arrival_s[order], np.float64),
            model=np.ascontiguousarray(block.model[order], np.int64),
            prompt=np.ascontiguousarray(block.prompt_tokens[order], np.int64),
            output=np.ascontiguousarray(block.output_tokens[order], np.int64),
            ids=np.ascontiguousarray(ids[order], np.int64),
            limit=none if limit is None else np.ascontiguousarray(limit[order], np.int64),
            **{name: column(name) for name in kinds},
            calls_tool=none if tool is None else np.ascontiguousarray(tool[order], np.int64),
            block_at=first,
            block_count=count,
            prompt_blocks=prompt,
            block_keys=keys,
            until=until,
        )

    def _by_group(self, block: RequestBlock) -> tuple[Any, NDArray[np.int64]]:
        groups, world = len(self.ranges.first_chip), self.world
        is_common = (
            len(self.clients.free_s) > 0
            or block.think_s is not None
            or world.outside_s[0] < np.inf
            or has_timers(self.rules)
            or self.prepared.fleet.gives_up
            or world.n_timeline[0] < self.timeline_rows
        )
        if groups == 1 or is_common:
            return slice(None), np.array([len(block)])
        group = self.ranges.of_model[block.model]
        narrow = np.uint16 if groups <= 1 << 16 else np.int64  # sorted in one pass over the digits
        until = np.cumsum(np.bincount(group, minlength=groups))
        return np.argsort(group.astype(narrow), kind="stable"), until

    def _ids(self, block: RequestBlock) -> np.ndarray:
        if block.ids is not None:
            return block.ids
        return np.arange(self.next_id, self.next_id + len(block))

    def _blocks(self, block: RequestBlock, order: Any) -> tuple[Any, ...]:
        if not self.prepared.fleet.caches_prefixes or block.block_first is None:
            return (np.zeros(0, np.int64),) * 4
        assert block.block_keys is not None
        first, count = block.block_first[:-1], np.diff(block.block_first)
        self.state = with_blocks(
            self.prepared, self.state, block.block_tokens, int(count.max(initial=1))
        )
        keys = np.ascontiguousarray(block.block_keys).view(np.int64)
        columns = (first, count, block.prompt_blocks())
        return *(column[order].astype(np.int64) for column in columns), keys

    def _driven(self, arguments: Any) -> int:
        if self._drive is None:
            self._drive = compiled_drive(arguments) if self.compiled else drive
        try:
            return self._drive(*arguments)
        except Exception as error:
            problem = policy_error(error, self.rules)
            if problem is error:
                raise
            raise problem from error

    @property
    def next_s(self) -> float:
        """The next event's time without a further request; inf: none."""
        ends_s = next_end(self.world.tournament, FLEET)[1]
        timers = self.state.timer_s
        others_s = min(float(timers[0]), float(self.world.outside_s[0]), ends_s)
        return min(others_s, float(timers.min())) if others_s < np.inf else np.inf

    def cancel(self, request: int, at_s: float, on_records: Callable[[Any], None]) -> None:
        """End a request whose client leaves; `at_s` as `feed`'s."""
        leaves = Cancelled(at_s=at_s, request_id=request)
        insort(self.incidents, leaves, key=lambda incident: incident.at_s)
        self._look_outside()
        self.feed(concatenate([]), on_records, until_s=at_s)

    def _look_outside(self) -> None:
        incident_s = self.incidents[0].at_s if self.incidents else np.inf
        self.world.outside_s[0] = min(self.failures.next_s, incident_s)

    def _act_outside(self, *, is_over: bool) -> None:
        count = self.state.count[0]
        if is_over and count.arrived == count.finished + count.failed:
            self.world.outside_s[0] = np.inf
            return
        room = int(count.arrived - count.finished - count.failed) + 2  # all of it may fail
        if count.out + room > len(self.state.records):
            self.state = grow_records(self.state, room)
        now_s, had_ended = float(self.world.outside_s[0]), int(count.out)
        while self.failures.next_s <= now_s:
            if (event := self.failures.next_event()) is not None:
                self._change_chips(*event, now_s)
        while self.incidents and self.incidents[0].at_s <= now_s:
            self._happen(self.incidents.pop(0), now_s)
        self._look_outside()
        give_back(self.clients, turns_ended(self.state, self.sessions, had_ended, now_s), now_s)

    def _change_chips(self, chips: Sequence[int], returns: bool, now_s: float) -> None:
        state = self.state
        devices = [d for c in chips for d in range(state.chip[c].first, state.chip[c].last)]
        if returns:
            for d in devices:
                bring_back(self.w, d, now_s)
        else:
            self._lose(devices, now_s)
            if self.prepared.setup.failures.host_chips > 0:
                lose_memory(self.prepared.fleet, state, chips)
        for c in chips:
            self._carry_out(int(state.chip[c].first), now_s)

    def _lose(self, devices: Sequence[int], now_s: float) -> None:
        rules, state, world = self.rules, self.state, self.world
        for d in devices:
            if has_steps_done(world, d, now_s):
                end_phase(rules, self.machine, state, world, d, now_s)
                if self.machine.cuts_runs:
                    end_by_length(self.w, self.machine, d)
                on_step_end(self.w, d, now_s)
                self._carry_out(d, now_s)
        for d in devices:
            if len(world.wires.wire) > 0:
                clear_wire(state, world, d, EVERYBODY)
            lose_phase(rules, state, world, d, now_s)
            row = relayouts_at(state, world) + d
            if row >= len(state.device) and world.busy[row]:
                end_relayout(rules, state, world, row, now_s)
        lose_devices(self.w, devices, now_s)

    def _happen(self, incident: Incident, now_s: float) -> None:
        w, device = self.w, -1
        if isinstance(incident, Cancelled):
            if (slot := slot_of(w.s, incident.request_id)) >= 0:
                end_request(w, slot, FAIL_CANCELLED, now_s)
        elif isinstance(incident, DeviceLost | DeviceBack | BlocksLost):
            kind, device, model = row_of(incident)
            is_back, lost = kind == BACK, is_lost(w.s, device)
            if kind == LOSS and not lost:
                self._lose([device], now_s)
            elif is_back == lost:
                apply_rare(w, kind, device, model, now_s)
        else:
            self._change_pins(incident, now_s)
        self._carry_out(device, now_s)

    def _change_pins(self, wish: Weights, now_s: float) -> None:
        kind, chip, model = row_of(wish)
        if kind in (HERE, RELEASE) and self.pinned[model, chip] == 0:
            return  # there was no room to keep them
        has_room = apply_rare(self.w, kind, chip, model, now_s)
        if kind in (KEEP, RELEASE):
            self.pinned[model, chip] += has_room if kind == KEEP else -1

    def _carry_out(self, device: int, now_s: float) -> None:
        start_asked(self.w, now_s)
        submit(self.w, self.machine, self.world, self.experts, device, now_s)

    def timeline(self) -> Any:
        """Return the kept phases (`TIMELINE_DTYPE`), by their end."""
        rows = int(self.world.n_timeline[0]) if self.timeline_rows > 0 else 0
        return self.world.timeline[:rows].copy()

    def take_timeline(self) -> Any:
        """Return the phases kept since the last call."""
        rows = self.timeline()
        self.world.n_timeline[0] = 0
        return rows

    def stats(self) -> RunStats:
        """Return the totals so far."""
        return stats_of(self.state, self.world, self.machine, self.experts, self.failures.rows)


def _whole_sessions(blocks: Iterable[RequestBlock]) -> Iterator[RequestBlock]:
    stream = iter(blocks)
    for block in stream:
        if block.think_s is not None:
            yield concatenate([block, *stream])
        else:
            yield block


def run_blocks(
    simulation: Simulation,
    blocks: Iterable[RequestBlock],
    on_records: Callable[[Any], None],
    on_progress: Callable[[int, float], None] | None = None,
) -> RunStats:
    """Simulate all blocks to the end.

    Args:
      on_records: gets arrays of `c2c.serving.RECORD_DTYPE`, in order of completion.
      on_progress: gets (requests arrived, simulated seconds).
    """
    waiting: RequestBlock | None = None
    blocks = _whole_sessions(blocks)
    for block in blocks:
        if len(block) == 0:
            continue
        if waiting is not None:
            simulation.feed(waiting, on_records)
            if on_progress is not None:
                on_progress(simulation.next_id, float(waiting.arrival_s[-1]))
        waiting = block
    if waiting is None:
        waiting = concatenate([])
    simulation.feed(waiting, on_records, is_last=True)
    if on_progress is not None:
        on_progress(simulation.next_id, float(simulation.world.link.at_s.max()))
    return simulation.stats()
