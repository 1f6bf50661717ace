"""Laws between a serving loop and its backend, seen from between them."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from c2c.policies import given_up_s, token_due_s
from c2c.serving import FAIL_NONE, Prepared, Serving
from c2c.serving.batches.schedulers.prompts_alone import PromptsAlone
from c2c.serving.batches.schedulers.sglang import SGLang
from c2c.serving.batches.schedulers.vllm_v0 import VllmV0
from c2c.serving.loop import Step
from c2c.serving.tables.port import (
    Absent,
    Action,
    Arrival,
    Backend,
    Cancelled,
    DeviceBack,
    DeviceLost,
    Event,
    Forget,
    ForgetBlocks,
    HandedOver,
    HandOver,
    Interrupt,
    KeepWeights,
    Load,
    Ready,
    Relaid,
    Relayout,
    ReleaseWeights,
    RunSteps,
    SetAside,
    SetTimer,
    StepEnd,
    Unload,
)
from c2c.serving.tables.roles import DECODES
from c2c.serving.tables.state import (
    ABSENT,
    ASSIGNED,
    ENDS_AT,
    FREE,
    NOWHERE,
    RUNNING,
    SETTLED,
    SLOT,
    WAITS,
    Fleet,
    Loop,
    Rules,
)

__all__ = ["Watch", "serve"]


@dataclass
class Engine:
    """An instance, as the backend sees it: its model and the KV tokens of each request."""

    model: int
    device: int
    is_ready: bool = False
    kv: dict[int, int] = field(default_factory=dict)


class Watch:
    """Keeps its own books of what was asked and answered, and holds the loop to them."""

    def __init__(self, prepared: Prepared, state: Serving) -> None:
        self.prepared = prepared
        self.asked: dict[int, Arrival] = {}
        self.made: Counter[int] = Counter()
        self.over: set[int] = set()  # finished, forgotten or cancelled
        self.engines = {  # made before the first event
            i: Engine(int(inst.model), int(inst.on_device), is_ready=True)
            for i, inst in enumerate(state.instance)
            if inst.model >= 0
        }
        self.busy: dict[int, Load | RunSteps] = {}
        self.lost: set[int] = set()
        self.coming: dict[int, tuple[int, int]] = {}  # of a request: to which instance, KV tokens
        self.on_wires: dict[int, tuple[Engine, Engine]] = {}  # of a request: from where to where
        self.relaying: dict[int, Relayout] = {}  # by device
        self.kept: Counter[int] = Counter()  # of a home, by its place: operators that keep it
        self.wish: KeepWeights | None = None  # whose answer stands in the loop's tables
        self.block_tokens = int(state.blocks.table[0].block_tokens)
        self.computed: set[int] = set()  # keys of blocks
        self.steps = 0

    def event(self, event: Event) -> None:
        """Take note of what the backend says, before the loop does."""
        if isinstance(event, Arrival):
            self.asked[event.request_id] = event
        elif isinstance(event, Cancelled):
            if event.request_id in self.asked:
                self.over.add(event.request_id)
        elif isinstance(event, DeviceLost):
            self.lost.add(event.device)
            self.busy.pop(event.device, None)
            self.relaying.pop(event.device, None)
            first = event.device * self.prepared.fleet.residents
            here = range(first, first + self.prepared.fleet.residents)
            self.coming = {r: c for r, c in self.coming.items() if c[0] not in here}
            for i in [i for i, e in self.engines.items() if e.device == event.device]:
                del self.engines[i]
            self._off_wires(lambda e: e.device == event.device)
        elif isinstance(event, DeviceBack):
            self.lost.discard(event.device)
        elif isinstance(event, KeepWeights):
            self.wish = event
        elif isinstance(event, ReleaseWeights):
            self.kept[self._home(event)] -= 1
        elif isinstance(event, HandedOver):
            source, _ = self.on_wires.pop(event.request_id)
            del source.kv[event.request_id]
        elif isinstance(event, Relaid) and event.device not in self.lost:
            del self.relaying[event.device]
        elif isinstance(event, Ready | StepEnd) and event.device not in self.lost:
            doing = self.busy.pop(event.device)
            if isinstance(event, Ready):
                assert isinstance(doing, Load)
                self.engines[doing.instance].is_ready = True
                self._open_lanes(self.engines[doing.instance])
            else:
                assert isinstance(doing, RunSteps)
                self._step_ended(doing, event)

    def _open_lanes(self, engine: Engine) -> None:
        """Free lanes of the kind are ready with the first one: they share its weights."""
        fleet, kinds, chips = (getattr(self.prepared, n) for n in ("fleet", "kind_of", "chip_of"))
        arch = fleet.deployment[engine.model].arch
        for d in range(len(kinds) * fleet.opens_all):
            is_like = (kinds[d], chips[d]) == (kinds[engine.device], chips[engine.device])
            if is_like and fleet.kv_capacity[arch, kinds[d]] > 0 and d not in self.lost:
                self.engines.setdefault(d * fleet.residents, Engine(engine.model, d, is_ready=True))

    def _step_ended(self, run: RunSteps, event: StepEnd) -> None:
        self.steps += int(event.report.steps)
        kv = self.engines[run.instance].kv
        for request, first, tokens in run.prefills:
            kv[request] = first + tokens
            if self.block_tokens > 0:
                self.computed.update(self.asked[request].blocks[: kv[request] // self.block_tokens])
            if kv[request] == self._prompt(request):
                self.made[request] += 1
                kv[request] += 1
        for request in run.decodes:
            kv[request] += int(event.report.steps)
            self.made[request] += int(event.report.steps)
        for request in event.finished:
            self._end(request)

    def _off_wires(self, goes: Callable[[Engine], bool]) -> None:
        for request, ends in list(self.on_wires.items()):
            if any(map(goes, ends)):
                del self.on_wires[request]
                for engine in ends:
                    engine.kv.pop(request, None)

    def prompts_done(self, run: RunSteps) -> list[int]:
        """Return the requests whose prompt ends with a run, which gives each a token."""
        return [r for r, first, tokens in run.prefills if first + tokens == self._prompt(r)]

    def _prompt(self, request: int) -> int:
        return self.asked[request].prompt_tokens + self.made[request]

    def _end(self, request: int) -> None:
        self.over.add(request)
        self.coming.pop(request, None)
        self.on_wires.pop(request, None)
        for engine in self.engines.values():
            engine.kv.pop(request, None)

    def actions(self, actions: Sequence[Action]) -> None:
        """Check what the loop asks."""
        for action in actions:
            if isinstance(action, Forget):
                assert action.request_id in self.asked
                self._end(action.request_id)
            elif isinstance(action, ForgetBlocks):
                assert {*action.keys} <= self.computed
            elif isinstance(action, SetAside):
                assert action.request_id in self.asked.keys() - self.over
                self.on_wires.pop(action.request_id, None)
                for engine in self.engines.values():
                    engine.kv.pop(action.request_id, None)
            elif isinstance(action, Absent):  # no instance lives on what is gone
                chips = self.prepared.chip_of
                for engine in self.engines.values():
                    assert chips[engine.device] != action.chip or (
                        engine.model not in action.models
                    )
            elif isinstance(action, HandOver):
                self._carry(action)
            elif isinstance(action, Relayout):
                assert action.device not in self.lost | self.relaying.keys()
                away = [e.kv for e in self.engines.values() if e.device != action.device]
                for request, _ in action.kv_homes:  # its first chunk may be still to come
                    assert request in self.asked.keys() - self.over
                    assert not any(request in kv for kv in away)
                assert min(action.sent_bytes) >= 0.0
                self.relaying[action.device] = action
            elif isinstance(action, SetTimer):
                assert np.isfinite(action.at_s)
            elif isinstance(action, Interrupt):
                run = self.busy[action.device]
                assert isinstance(run, RunSteps)
                assert run.plan.steps > 1
            elif isinstance(action, Unload):
                engine = self.engines.pop(action.instance)
                assert engine.is_ready
                assert not engine.kv
            else:
                self._start(action)
        self._check_memory()

    def _carry(self, action: HandOver) -> None:
        fleet, request = self.prepared.fleet, action.request_id
        assert request in self.asked.keys() - self.over
        (source,) = [e for e in self.engines.values() if request in e.kv]
        assert source.device == action.source != action.device
        if action.directly:
            target = self.engines[action.instance]
            assert target.is_ready
            assert target.device == action.device
            assert fleet.role[action.device] == DECODES != fleet.role[action.source]
            assert source.kv[request] == self._prompt(request)
            assert action.kv_bytes == (source.kv[request] - 1) * self._token_bytes(source)
            target.kv[request] = source.kv[request]  # both have room for it
            self.on_wires[request] = source, target
            return
        tokens = source.kv.pop(request)
        if action.kv_bytes == 0.0:  # its prompt's step has sent it
            target = self.engines[action.instance]
            assert target.is_ready
            assert target.device == action.device
            assert tokens == self._prompt(request)
            target.kv[request] = tokens
            return
        assert fleet.role[action.device] == DECODES
        assert fleet.role[action.source] != DECODES
        assert action.kv_bytes == tokens * self._token_bytes(source)
        self.coming[request] = (action.instance, tokens)

    def _token_bytes(self, engine: Engine) -> float:
        fleet = self.prepared.fleet
        pair = fleet.deployment[engine.model].arch * fleet.costs.kinds
        return float(fleet.costs.kv_bytes[pair + self.prepared.kind_of[engine.device]])

    def _start(self, action: Load | RunSteps) -> None:
        d = action.device
        assert d not in self.lost
        assert d not in self.busy, "a device runs one thing at a time"
        self.busy[d] = action
        if isinstance(action, Load):
            assert action.instance not in self.engines
            self.engines[action.instance] = Engine(action.model, d)
            here = [e for e in self.engines.values() if e.device == d]
            assert len(here) <= self.prepared.fleet.residents
            return
        engine = self.engines[action.instance]
        assert engine.is_ready
        assert (engine.model, engine.device) == (action.model, d)
        self._check_run(action, engine)

    def _check_run(self, run: RunSteps, engine: Engine) -> None:
        plan, fleet = run.plan, self.prepared.fleet
        prompts = [r for r, _, _ in run.prefills]
        assert not prompts or fleet.role[run.device] != DECODES
        came = 0.0
        for request in [r for r in run.decodes if r in self.coming]:
            instance, tokens = self.coming.pop(request)
            assert instance == run.instance
            engine.kv[request] = tokens
            came += tokens * self._token_bytes(engine)
        assert plan.kv_in_bytes >= came
        assert len(set(prompts) | set(run.decodes)) == len(prompts) + len(run.decodes) > 0
        assert len(prompts) + len(run.decodes) <= fleet.max_batch
        assert (plan.prefills, plan.decodes) == (len(prompts), len(run.decodes))
        assert plan.prefill == sum(tokens for _, _, tokens in run.prefills)
        assert plan.steps >= 1
        if prompts:
            assert plan.steps == 1
            mixes = not isinstance(self.prepared.setup.system.batch, PromptsAlone | VllmV0 | SGLang)
            assert mixes or not run.decodes, "decodes wait for prompts"
        assert not self.over & {*prompts, *run.decodes}, "served after its end"
        for request, first, tokens in run.prefills:
            assert self.asked[request].model == run.model
            done = engine.kv[request] if request in engine.kv else self._found(request, first)
            assert first == done, "a prompt is computed in order, once"
            assert 0 < tokens <= self._prompt(request) - first
        assert not self.on_wires.keys() & {*prompts, *run.decodes}, "its KV cache has not come"
        for request in run.decodes:
            left = self.asked[request].max_output_tokens - self.made[request]
            assert engine.kv[request] == self._prompt(request)
            assert plan.steps <= left, "past the longest output"
        assert plan.rows == len(run.decodes) + len(self.prompts_done(run))

    def _found(self, request: int, first: int) -> int:
        """Return where a request that is new on an instance may begin: after others' blocks."""
        if not self.prepared.fleet.caches_prefixes:
            return 0
        keys = self.asked[request].blocks[: -(-first // self.block_tokens)]
        assert {*keys} <= self.computed, "nobody has computed what it begins after"
        return first

    def _check_memory(self) -> None:
        fleet, kinds = self.prepared.fleet, self.prepared.kind_of
        if fleet.caches_prefixes:  # where requests share, `check_state` of the prefix cache counts
            return
        if len(fleet.kv.room_bytes) > 0:  # a lane has several homes, which `_check_memories` counts
            return
        arch = np.asarray(fleet.deployment)["arch"]
        for d in {e.device for e in self.engines.values()}:
            here = [e for e in self.engines.values() if e.device == d]
            token = fleet.costs.kv_bytes[
                arch[[e.model for e in here]] * fleet.costs.kinds + kinds[d]
            ]
            capacity = fleet.kv_capacity[arch[[e.model for e in here]], kinds[d]] * token
            used = np.array([t * sum(e.kv.values()) for t, e in zip(token, here, strict=True)])
            room = capacity.min() - (len(here) - 1) * fleet.engine_bytes
            assert used.max() <= room
            assert used.sum() <= room + fleet.kv_host_bytes

    def tables(self, rules: Rules, state: Serving) -> None:
        """Check the loop's own books after an event, when its actions are known."""
        if self.wish is not None:
            k = self._home(self.wish)
            if k >= 0 and state.hold[k].state != ABSENT:  # else there was no room
                self.kept[k] += 1
            self.wish = None
        _check_room(self.prepared, state)
        _check_pools(self.prepared, self.kept, state)
        _check_lines(self.prepared, rules, state)

    def _home(self, event: KeepWeights | ReleaseWeights) -> int:
        fleet = self.prepared.fleet
        homes = zip(fleet.home_model.tolist(), fleet.home_chip.tolist(), strict=True)
        return next((k for k, at in enumerate(homes) if at == (event.model, event.chip)), -1)

    def end(self, state: Serving) -> Any:
        """Check that nothing is left, once there are no more events; return records by id."""
        assert not self.busy
        assert not self.relaying, "copies were never there"
        assert not any(e.kv for e in self.engines.values())
        assert not self.coming
        assert not self.on_wires
        records = np.sort(state.records[: state.count[0].out], order="id").view(np.recarray)
        _check_end(self, records, state)
        return records


def serve(prepared: Prepared, backend: Backend) -> tuple[Any, Serving, Watch]:
    """Serve until nothing happens any more; return the records by id, the state and the watch.

    The loop's step is machine code, as a live engine's.
    """
    rules = prepared.new_rules()
    state = prepared.new_serving(slots=2, buffer=1, rules=rules)
    step, watch = Step(Loop(prepared.fleet, rules, state), compiled=True), Watch(prepared, state)
    while (event := backend.next_event()) is not None:
        watch.event(event)
        state, actions = step(state, event)
        watch.actions(actions)
        watch.tables(rules, state)
        backend.submit(float(state.count[0].now_s), actions)
    return watch.end(state), state, watch


def _check_pools(prepared: Prepared, kept: Counter[int], state: Serving) -> None:
    # The books of host memory are those of what it holds and of who holds on to it.
    fleet, hold = prepared.fleet, np.asarray(state.hold)
    inst, chips = np.asarray(state.instance), np.asarray(state.chip)
    weights = fleet.weight_bytes[fleet.home_model]
    is_there = ~np.isin(inst["state"], (FREE, NOWHERE)) & (inst["model"] >= 0)
    on = Counter(
        zip(inst["model"][is_there].tolist(), inst["chip"][is_there].tolist(), strict=True)
    )
    where = list(zip(fleet.home_model.tolist(), fleet.home_chip.tolist(), strict=True))
    assert hold["pins"].tolist() == [on[home] + kept[k] for k, home in enumerate(where)]
    assert not hold["pins"][hold["state"] == ABSENT].any()
    for c in range(len(chips)):
        here = fleet.home_chip == c
        held = weights[here & (hold["state"] != ABSENT)].sum()
        pinned = weights[here & (hold["pins"] > 0)].sum()
        np.testing.assert_allclose(chips["free_bytes"][c], chips["host_bytes"][c] - held)
        np.testing.assert_allclose(chips["pinned_bytes"][c], pinned)
        assert held <= chips["host_bytes"][c]
        in_host = (inst["parked_bytes"] + inst["coming_bytes"])[inst["chip"] == c]
        assert chips["kv_room_bytes"][c] == fleet.kv_host_bytes - in_host.sum() >= 0.0


def _check_lines(prepared: Prepared, rules: Rules, state: Serving) -> None:
    # What an instance was found to owe its decodes is what would be found now.
    turn, now_s = rules.system.turn, float(state.count[0].now_s)
    for i, inst in enumerate(state.instance):
        if inst.looked_at != inst.n_decode or now_s > inst.line_until_s:
            continue
        tpot_s = prepared.fleet.deployment[inst.model].tpot_slo_s
        kept_up, due_s, until_s = 0, math.inf, math.inf
        for k in range(inst.n_decode):
            req = state.request[state.decoding[i, k, SLOT]]
            made = req.output - (state.decoding[i, k, ENDS_AT] - inst.decode_clock)
            ends_s = given_up_s(turn, req.first_token_s, made, tpot_s)
            if now_s <= ends_s:
                kept_up += 1
                until_s = min(until_s, ends_s)
                line_s = token_due_s(turn, req.first_token_s, made, inst.last_token_s, tpot_s)
                due_s = min(due_s, line_s)
        assert (inst.kept_up, inst.line_due_s, inst.line_until_s) == (kept_up, due_s, until_s)


def _check_memories(fleet: Fleet, state: Serving) -> None:
    # Keys, values and copied weights fit the memories of a node, unless a relayout waits for room.
    for chip in state.chip:
        here = slice(chip.first, chip.last)
        move, kind = state.relayout[here], state.device["kind"][here]
        copied = fleet.kv.copied_bytes[kind, move["version"]]
        wanted = np.where(move["state"] == SETTLED, move["version"], move["wanted"])
        used = state.taken[here] + np.maximum(copied, fleet.kv.copied_bytes[kind, wanted])
        if not (move["state"] == WAITS).any():
            assert (used.sum(axis=0) <= fleet.kv.room_bytes).all()


def _check_room(prepared: Prepared, state: Serving) -> None:
    # Reserved KV caches, kept weights and the engines that are loaded fit each device.
    fleet, inst = prepared.fleet, np.asarray(state.instance)
    arch = np.asarray(fleet.deployment)["arch"][inst["model"]]
    token = fleet.costs.kv_bytes[arch * fleet.costs.kinds + inst["kind"]]
    is_there = ~np.isin(inst["state"], (FREE, ASSIGNED, NOWHERE))
    room = np.where(is_there, fleet.kv_capacity[arch, inst["kind"]] * token, np.inf)
    engines = is_there.reshape(-1, fleet.residents).sum(axis=1)
    assert (engines <= fleet.most_engines[prepared.kind_of]).all()
    room = room.reshape(-1, fleet.residents).min(axis=1)
    device = np.asarray(state.device)
    has_model = ~np.isin(inst["state"], (FREE, NOWHERE))
    np.testing.assert_array_equal(
        device["residents"], has_model.reshape(-1, fleet.residents).sum(axis=1)
    )
    used = device["kv_bytes"] + device["weight_bytes"]
    if state.taken.shape[1] == 0:
        assert (used + np.maximum(0, engines - 1) * fleet.engine_bytes <= room).all()
    else:  # `kv_capacity` is of one home, and a lane has several
        _check_memories(fleet, state)
    own = np.where(inst["kv_used"] > 0, inst["kv_used"] * token, 0.0)
    assert ((inst["parked_bytes"] >= 0.0) & (inst["parked_bytes"] <= own)).all()
    in_hbm = (own - inst["parked_bytes"]).reshape(-1, fleet.residents).sum(axis=1)
    np.testing.assert_array_equal(device["kv_bytes"], in_hbm)
    runs = inst["state"] == RUNNING
    assert not inst["parked_bytes"][runs].any(), "a step's KV caches are in HBM"
    assert not used[engines == 0].any()


def _check_end(watch: Watch, records: Any, state: Serving) -> None:
    count = state.count[0]
    assert records.id.tolist() == sorted(watch.asked), "one record a request"
    assert count.arrived == len(records) == count.finished + count.failed
    served = records[records.failure == FAIL_NONE]
    assert count.finished == len(served)
    for row in records:
        asked = watch.asked[int(row.id)]
        assert row.prompt_tokens == asked.prompt_tokens
        if row.failure == FAIL_NONE:
            assert row.output_tokens == watch.made[int(row.id)]
            assert row.finished_s <= row.arrival_s + asked.deadline_s
    times = ("arrival_s", "admitted_s", "started_s", "first_token_s", "finished_s")
    for earlier, later in itertools.pairwise(times):
        assert (records[earlier] <= records[later]).all(), (earlier, later)
    # everything is free again
    assert count.pending == 0
    assert count.free_slots == len(state.request)
    for field_ in ("n_wait", "n_prefill", "n_decode", "backlog", "kv_used", "parked_bytes",
                   "coming_bytes"):  # fmt: skip
        assert not state.instance[field_].any(), field_
    assert not state.inbound.sent.any()
    assert not state.inbound.come.any()
    assert not state.device.kv_bytes.any()
    assert (state.device.running == -1).all()
    assert (state.chip.claim == -1).all()
    assert not state.chip.n_held.any()
