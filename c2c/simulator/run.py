"""Driver of the event loop over blocks of arrivals, with bounded memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from c2c.compiling.mistakes import policy_error
from c2c.serving import RESOURCES, Prepared, start_asked
from c2c.serving.device_loss import bring_back, lose_devices, lose_memory
from c2c.serving.prepare.prefixes import with_blocks
from c2c.serving.state import Loop, Rules, Serving
from c2c.serving.step import on_step_end
from c2c.serving.table_growth import grow_records, grow_requests
from c2c.serving.timers import has_timers
from c2c.simulator.backend import end_phase, submit
from c2c.simulator.clients import Clients, give_back, new_clients
from c2c.simulator.compiled import compiled_drive
from c2c.simulator.core import CHIPS_DUE, DRAINED, NEED_SLOTS, RECORDS_FULL, drive
from c2c.simulator.expert_state import Experts
from c2c.simulator.experts import build_experts
from c2c.simulator.failures import FailureRow, FailureSchedule, has_steps_done, lose_phase
from c2c.simulator.groups import Ranges, ranges_of
from c2c.simulator.sessions import (
    Sessions,
    begin_turns,
    new_sessions,
    turns_ended,
)
from c2c.simulator.world import Machine, World, new_world
from c2c.workloads import ClosedLoop, RequestBlock, concatenate

__all__ = ["RunStats", "Simulation", "run_blocks"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStats:
    """Totals of a finished simulation; arrays are [instances] or [chips]."""

    arrived: int
    finished: int
    failed: int
    switches: int
    cold_starts: int
    evictions: int
    dropped: int  # models that gave way in host memory
    drains: int
    preempted: int  # times that a request was set aside
    variant_changes: (
        int  # variants of steps that came into force, at most one a kind of lane a time
    )
    relayouts: int  # changes of a lane's variant that had room, where lanes share memories
    relayout_bytes: float  # that they sent
    relayout_s: float  # while they sent
    handed: int  # times that one went to another device to decode
    end_s: float
    busy_s: np.ndarray
    load_s: np.ndarray
    instance_link_bytes: np.ndarray
    instance_hbm_bytes: np.ndarray
    runs: np.ndarray  # of steps: what the event loop walked
    steps: np.ndarray
    prefill_tokens: np.ndarray
    decode_tokens: np.ndarray
    chip_link_bytes: np.ndarray  # integral of the granted rates
    chip_peak_gbps: np.ndarray
    link_capacity_gbps: float  # of a chip; of unlike ones the fastest
    resource_s: np.ndarray  # [chips, resources] of a layout that runs took; no column without one
    kv_in_bytes: float  # KV caches that came back from host memory
    kv_out_bytes: float
    prefix_asked_tokens: int  # prompts of requests that carry blocks, where a cache keeps some
    prefix_hbm_tokens: int  # of these, found in HBM
    prefix_host_tokens: int  # found in host memory
    prefix_loaded_bytes: float  # from there to HBM
    prefix_stored_bytes: float  # to host memory
    prefix_evicted_bytes: float  # of both
    expert_uses: int  # experts that layers ran, where HBM holds some only
    expert_misses: int
    expert_ahead: int  # fetched before their layer
    expert_bytes: float  # over the link
    expert_wait_s: float  # of layers for experts; with a table of misses the host's work as well
    expert_host_s: float  # of the host's work for experts that nothing hid
    since_s: np.ndarray  # begin of each slice's service, later by the time for which it was lost
    until_s: np.ndarray  # when it was lost; inf: it is in service
    failures: tuple[FailureRow, ...]  # of chips


@dataclass(slots=True)
class Simulation:
    """One run: state and world, which it owns, and the phases kept for the timeline.

    Two simulations in one process share nothing but read-only tables.
    """

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
    ) -> Simulation:
        """Return a simulation at time 0.

        Args:
          loop: clients of a closed loop; None: requests arrive at their times.
          models: models that get requests; None: all.
        """
        state = prepared.new_serving(buffer=buffer, models=models, active=False)
        failures = FailureSchedule(prepared, prepared.chips_of(models))
        ranges = ranges_of(prepared)
        world = new_world(machine, state, timeline_rows, ranges.first_chip)
        world.outside_s[0] = failures.next_s
        return cls(
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
        )

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
    ) -> None:
        """Simulate a block of arrivals and pass finished requests to `on_records` (copies).

        Raises:
          PolicyError: a policy from outside the package failed.
          RuntimeError: a request was lost, which is a bug.
        """
        order, until = self._by_group(block)
        ids = self._ids(block)
        is_whole = is_last and self.next_id == 0
        if block.think_s is not None and is_whole:
            self.sessions = begin_turns(block, ids)
        blocks = self._blocks(block, order)
        arrivals = tuple(
            np.ascontiguousarray(a[order], dtype)
            for a, dtype in (
                (block.arrival_s, np.float64),
                (block.model, np.int64),
                (block.prompt_tokens, np.int64),
                (block.output_tokens, np.int64),
                (ids, np.int64),
            )
        )
        is_open = len(block) > 0 and len(self.clients.free_s) == 0
        last_s = float(block.arrival_s[-1]) if is_open else -np.inf
        in_groups: list[Any] = []  # of groups, one after another
        cursor = np.zeros(2, np.int64)
        while True:
            arguments: Any = (
                self.w,
                self.machine,
                self.world,
                self.experts,
                *arrivals,
                *blocks,
                until,
                cursor,
                last_s,
                is_last,
                self.clients,
                self.sessions,
            )
            why = self._driven(arguments)
            n_out = int(self.state.count[0].out)
            if n_out > 0 and (why == RECORDS_FULL or is_last or len(until) > 1):
                records = self.state.records[:n_out].copy()
                (on_records if len(until) == 1 else in_groups.append)(records)
                self.state.count[0].out = 0
            if why == CHIPS_DUE:
                self._change_chips(is_over=is_last and cursor[0] == len(block))
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
            left = count[0].arrived - count[0].finished - count[0].failed
            if left != 0:
                lost = RuntimeError(f"{left} of {count[0].arrived} requests were never served")
                raise policy_error(lost, self.rules)

    def _by_group(self, block: RequestBlock) -> tuple[Any, NDArray[np.int64]]:
        """Return the order in which the block is served, and the end of each group's requests.

        All chips are served together, in the order of time, if they share clients, timers, or a
        timeline that is not full yet.
        """
        groups, world = len(self.ranges.first_chip), self.world
        is_common = (
            len(self.clients.free_s) > 0
            or block.think_s is not None
            or self.failures.next_s < np.inf
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
        """Return the arguments of `drive` for the requests' prefix blocks."""
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
            found = policy_error(error, self.rules)
            if found is error:
                raise
            raise found from error

    def _change_chips(self, *, is_over: bool) -> None:
        """Let chips fail or return; without work left none does again."""
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
                self._change_service(*event, now_s)
        self.world.outside_s[0] = self.failures.next_s
        give_back(self.clients, int(count.out) - had_ended, now_s)
        turns_ended(self.state, self.sessions, had_ended, now_s)

    def _change_service(self, chips: Sequence[int], returns: bool, now_s: float) -> None:
        """Take chips that fail together out of service, or return them."""
        fleet, rules, state, world = self.prepared.fleet, self.rules, self.state, self.world
        devices = [d for c in chips for d in range(state.chip[c].first, state.chip[c].last)]
        if not returns:
            for d in devices:
                if has_steps_done(world, d, now_s):
                    end_phase(rules, self.machine, state, world, d, now_s)
                    on_step_end(self.w, d, now_s)
                    self._carry_out(d, now_s)
            for d in devices:
                lose_phase(rules, state, world, d, now_s)
            lose_devices(self.w, devices, now_s)
            if self.prepared.setup.failures.host_chips > 0:
                lose_memory(fleet, state, chips)
        for d in devices:
            if returns:
                bring_back(self.w, d, now_s)
        for c in chips:
            self._carry_out(int(state.chip[c].first), now_s)

    def _carry_out(self, device: int, now_s: float) -> None:
        """Carry out the decided actions and share the link of a device's chip again."""
        fleet, rules, state = self.prepared.fleet, self.rules, self.state
        start_asked(self.w, now_s)
        submit(fleet, rules, self.machine, state, self.world, self.experts, device, now_s)

    def timeline(self) -> Any:
        """Return the phases kept so far (`TIMELINE_DTYPE`), in order of their end."""
        kept = int(self.world.n_timeline[0]) if self.timeline_rows > 0 else 0
        return self.world.timeline[:kept].copy()

    def stats(self) -> RunStats:
        """Return the totals so far."""
        count, link = self.state.count, self.world.link
        phase = self.world.phase[: len(self.state.device)]
        relayouts = self.world.phase[len(self.state.device) :]
        cache = self.experts.cache
        table, pool = self.state.blocks.table[0], self.state.blocks.pool
        return RunStats(
            arrived=int(count[0].arrived),
            finished=int(count[0].finished),
            failed=int(count[0].failed),
            switches=int(count[0].switches),
            cold_starts=int(count[0].cold_starts),
            evictions=int(count[0].evictions),
            dropped=int(count[0].dropped),
            drains=int(count[0].drains),
            preempted=int(count[0].preempted),
            variant_changes=int(count[0].variant_changes),
            handed=int(count[0].handed),
            relayouts=int(count[0].relayouts),
            relayout_bytes=float(relayouts.total_link.sum()),
            relayout_s=float(relayouts.busy_s.sum()),
            end_s=float(link.at_s.max()),
            busy_s=np.array(phase.busy_s),
            load_s=np.array(phase.load_s),
            instance_link_bytes=np.array(phase.total_link),
            instance_hbm_bytes=np.array(phase.total_hbm),
            runs=np.array(phase.total_runs),
            steps=np.array(phase.total_steps),
            prefill_tokens=np.array(phase.total_prefill),
            decode_tokens=np.array(phase.total_decode),
            chip_link_bytes=np.array(link.moved),
            chip_peak_gbps=np.array(link.peak) / 1e9,
            link_capacity_gbps=float(self.machine.capacity.max()) / 1e9,
            resource_s=self.world.works.used[:, len(RESOURCES) :].copy(),
            kv_in_bytes=float(phase.total_kv_in.sum()),
            kv_out_bytes=float(phase.total_kv_out.sum()),
            prefix_asked_tokens=int(table.asked_tokens),
            prefix_hbm_tokens=int(table.found_hbm_tokens),
            prefix_host_tokens=int(table.found_host_tokens),
            prefix_loaded_bytes=float(pool.in_bytes[: len(phase)].sum()),
            prefix_stored_bytes=float(pool.in_bytes[len(phase) :].sum()),
            prefix_evicted_bytes=float(pool.evicted_bytes.sum()),
            expert_uses=int(cache.uses.sum()),
            expert_misses=int(cache.misses.sum()),
            expert_ahead=int(cache.ahead.sum()),
            expert_bytes=float(cache.fetched_bytes.sum()),
            expert_wait_s=float(cache.wait_s.sum()),
            expert_host_s=float(cache.host_s.sum()),
            since_s=np.array(self.state.device.since_s),
            until_s=np.array(self.state.device.until_s),
            failures=self.failures.rows,
        )


def _whole_sessions(blocks: Iterable[RequestBlock]) -> Iterator[RequestBlock]:
    """Yield the blocks, merged into one if turns of sessions wait for earlier answers."""
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
      on_records: called with record arrays (`c2c.serving.RECORD_DTYPE`) in order of completion.
      on_progress: called after each block with (requests arrived, simulated seconds).
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
