"""A toy system is served three ways, and every step of it is held to the laws of the rooms."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pytest

from c2c.draws import hashed
from c2c.policies import VaryTraits, answer, variant
from c2c.serving import Plan, Prepared, Serving, ServingSetup, Work, path_ends, prepare
from c2c.serving.loop import step
from c2c.serving.tables.plans import CACHED, GROWTH, PREFILL, ROWS
from c2c.serving.tables.port import Action, DeviceLost, Event, Relayout, RunSteps, StepEnd
from c2c.serving.tables.state import SETTLED, SLOT, WAITS
from c2c.simulator import RunStats, build_machine
from c2c.workloads import RequestBlock
from tests.contracts.recorded import Recorded
from tests.simulator.worlds import in_both_forms

__all__ = ["Anything", "Books", "served", "served_while_lost"]


class Chosen(NamedTuple):
    """Memory of `Anything`: the variant of each instance, and times that it looked."""

    variant: Any
    looked: Any


class Anything(NamedTuple):
    """A controller without a plan: each period, a drawn variant for each instance."""

    period_s: float = 0.1
    variants: int = 2
    seed: int = 0

    def memory(self, fleet: Any) -> Chosen:
        """Return what it remembers at the start."""
        return Chosen(np.zeros(fleet.instances, np.int64), np.zeros(1, np.int64))

    @property
    def traits(self) -> VaryTraits:
        """Facts of this policy that hold at any time."""
        return VaryTraits(follows_waits=True, timer_s=self.period_s)


@variant.by(Anything)
def _chosen(
    policy: Anything, own: Any, chip: int, instance: int, waiting: int, now_s: float
) -> int:
    return int(own.variant[instance])


@answer.by(Anything)
def _look(policy: Anything, own: Any, table: Any, count: int, chip: int, now_s: float) -> float:
    own.looked[0] += 1
    for n in range(count):
        drawn = hashed(hashed(policy.seed, int(own.looked[0])), int(table[n].instance))
        own.variant[table[n].instance] = drawn % policy.variants
    return now_s + policy.period_s


@dataclass
class Books:
    """Requests and answers, seen from between the loop and its backend."""

    prepared: Prepared
    sent_bytes: np.ndarray  # by way, of relayouts
    used_s: Counter[str] = field(default_factory=Counter)  # by resource, of steps
    under_way: dict[int, tuple[RunSteps, float]] = field(default_factory=dict)
    homes: dict[int, int] = field(default_factory=dict)  # of sequences in batches
    all_homes: dict[int, int] = field(default_factory=dict)  # the last of each
    versions: dict[int, int] = field(default_factory=dict)  # of lanes
    relayouts: int = 0
    moved: int = 0  # sequences that changed their home

    def plan(self, run: RunSteps) -> Plan:
        """Return the works of a run's steps."""
        layout, kind = self.prepared.setup.system.layout, self.prepared.kind_of[run.device]
        spec = self.prepared.architectures[self.prepared.fleet.deployment[run.model].arch]
        steps: tuple[Plan, ...] = layout.steps_of(self.prepared.slice_kinds[kind], spec.name)
        return steps[int(run.plan.alpha)]

    def end(self, event: Event) -> None:
        """Take the end of a run: it used what its steps ask for, and no work began too early."""
        if not isinstance(event, StepEnd):
            return
        run, begun_s = self.under_way.pop(event.device)
        plan, least_s = self.plan(run), 0.0
        for j in range(int(event.report.steps)):
            ends = path_ends(plan, lambda w, j=j: _amount(w, w.seconds, run.split, j))
            least_s += float(max(ends.values()))
            for work in plan:
                for name, amount in work.draws.items():
                    self.used_s[name] += _amount(work, amount, run.split, j)
        assert event.at_s - begun_s >= least_s * (1.0 - 1e-9)

    def look(self, state: Serving, event: Event, actions: tuple[Action, ...], now_s: float) -> None:
        """Hold the state to what must be true after an event."""
        for action in actions:
            if isinstance(action, RunSteps):
                assert action.device not in self.under_way
                assert action.plan.alpha == state.relayout[action.device].version
                assert action.split[:, PREFILL].sum() == action.plan.prefill
                assert action.split[:, ROWS].sum() == action.plan.decodes
                assert action.split[:, CACHED].sum() == action.plan.decode_kv
                self.under_way[action.device] = action, now_s
            elif isinstance(action, Relayout):
                self.sent_bytes += action.sent_bytes
                self.relayouts += 1
                self.moved += len(action.kv_homes)
        ended = event.device if isinstance(event, StepEnd) else -1
        is_new = {a.device for a in actions if isinstance(a, RunSteps)}
        for d, move in enumerate(state.relayout):
            if self.versions.setdefault(d, 0) != move.version:  # at step boundaries only
                assert d == ended or d not in self.under_way or d in is_new
        self._check_memory(state)

    def _check_memory(self, state: Serving) -> None:
        kv, homes = self.prepared.fleet.kv, {}
        held, owed = np.zeros((2, len(state.device), len(kv.room_bytes)))
        for d, dev in enumerate(state.device):
            i, move = int(dev.first), state.relayout[d]
            inst, waits = state.instance[i], move.state == WAITS
            one = kv.token_bytes[self.prepared.fleet.deployment[inst.model].arch
                                 * len(self.prepared.slice_kinds) + inst.kind]  # fmt: skip
            batch = [*state.prefilling[i, : inst.n_prefill],
                     *state.decoding[i, : inst.n_decode, SLOT]]  # fmt: skip
            for slot in batch:
                req = state.request[slot]
                homes[int(req.id)] = int(req.kv_home)
                tokens = req.prompt + req.output
                both = one[req.kv_home] + one[req.kv_next] * (req.kv_next != req.kv_home)
                owed[d] += tokens * both
                held[d] += tokens * (one[req.kv_home] if waits else both)
                is_open = kv.is_open[inst.kind, move.version, req.kv_home]
                assert is_open
                if self.homes.get(int(req.id), req.kv_home) != req.kv_home:
                    assert self.versions[d] != move.version
            weights = kv.copied_bytes[inst.kind, move.version]
            if move.state not in (SETTLED, WAITS):
                weights = np.maximum(weights, kv.copied_bytes[inst.kind, move.wanted])
            held[d] += weights
        assert (owed == state.taken).all()
        kept = np.maximum(held, kv.reserve_bytes[state.device.kind])
        assert (kept.sum(0) <= kv.room_bytes).all()
        self.homes = homes
        self.all_homes |= homes
        self.versions = {d: int(move.version) for d, move in enumerate(state.relayout)}


def _amount(work: Work, amount: Any, split: np.ndarray, j: int) -> float:
    mine = split.sum(0) if work.home is None else split[work.home]
    cached = mine[CACHED] + j * mine[GROWTH]
    by_size = amount.prefill.at(mine[PREFILL]) + amount.decode.at(mine[ROWS])
    by_size += amount.tokens.at(mine[PREFILL] + mine[ROWS])
    return float(by_size + amount.cached * cached)


def served(what: ServingSetup, block: RequestBlock) -> tuple[Any, RunStats, Books]:
    """Serve requests interpreted, compiled and through the port, with the same records.

    Returns:
      The records by id, the totals and the books.
    """
    prepared = prepare(what)
    records, stats, done = in_both_forms(prepared, block)
    rules, machine = prepared.new_rules(), build_machine(prepared)
    backend = Recorded(prepared, block)
    state = prepared.new_serving(slots=len(block) + 1, rules=rules)
    books = Books(prepared, np.zeros(len(machine.way_on)))
    while (event := backend.next_event()) is not None:
        books.end(event)
        state, actions = step(prepared.fleet, rules, state, event, donate=True)
        now_s = float(state.count[0].now_s)
        books.look(state, event, actions, now_s)
        backend.submit(now_s, actions)
    seen = np.sort(state.records[: state.count[0].out], order="id")
    assert seen.tobytes() == records.tobytes()
    # one record a request, and nothing is left
    assert list(records.id) == list(range(len(block)))
    assert not records.failure.any()
    assert (records.output_tokens == block.output_tokens).all()
    assert not state.taken.any()
    assert not done.state.taken.any()
    # bytes asked are bytes moved, and so are seconds of resources
    assert stats.relayout_bytes == pytest.approx(books.sent_bytes.sum(), rel=1e-12)
    layout = what.system.layout
    wanted = dict.fromkeys(layout.resources, 0.0) | books.used_s
    for way, nbytes in zip(layout.ways, books.sent_bytes, strict=True):
        for name in way.resources:
            wanted[name] += nbytes / (way.gbps * 1e9)
    found = dict(zip(layout.resources, stats.resource_s[0], strict=True))
    assert found == pytest.approx(wanted, rel=1e-9, abs=1e-12)
    assert not books.under_way
    return records, stats, books


def served_while_lost(what: ServingSetup, block: RequestBlock, lost: DeviceLost) -> Any:
    """Serve requests while a lane is lost; each has one record and nothing is held at the end."""
    prepared = prepare(what)
    rules = prepared.new_rules()
    backend = Recorded(prepared, block, incidents=[lost])
    state = prepared.new_serving(slots=len(block) + 1, rules=rules)
    while (event := backend.next_event()) is not None:
        state, actions = step(prepared.fleet, rules, state, event, donate=True)
        backend.submit(float(state.count[0].now_s), actions)
    records = np.sort(state.records[: state.count[0].out], order="id")
    assert list(records["id"]) == list(range(len(block)))
    assert not state.taken.any()
    return records.view(np.recarray)
