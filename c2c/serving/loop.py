"""The serving loop over the port."""

from __future__ import annotations

import struct
from functools import partial
from operator import attrgetter
from typing import Any, Final

import numpy as np

from c2c.compiling.machine_code import compiled as compiled_entry
from c2c.compiling.machine_code import is_kept
from c2c.errors import BackendError
from c2c.serving import events
from c2c.serving.events import EVENT_DTYPE, Exchange, take, take_rare
from c2c.serving.step_report import most_steps, not_in_step
from c2c.serving.tables.actions import (
    ACT_ASIDE,
    ACT_FORGET,
    ACT_HAND,
    ACT_INTERRUPT,
    ACT_LOAD,
    ACT_RELAYOUT,
    ACT_RUN,
    ACT_TIMER,
)
from c2c.serving.tables.port import (
    Absent,
    Action,
    Arrival,
    BlocksLost,
    Cancelled,
    DeviceBack,
    DeviceLost,
    DropWeights,
    Event,
    Forget,
    ForgetBlocks,
    HandedOver,
    HandOver,
    Interrupt,
    KeepWeights,
    Load,
    Plan,
    Ready,
    Relaid,
    Relayout,
    ReleaseWeights,
    RunSteps,
    SetAside,
    SetTimer,
    StepEnd,
    Timer,
    Unload,
    WeightsHere,
)
from c2c.serving.tables.state import (
    ABSENT,
    PLAN_DTYPE,
    REPORT_DTYPE,
    SLOT,
    Fleet,
    Loop,
    Rules,
    Serving,
)
from c2c.serving.tables.table_growth import grow_records, grow_requests
from c2c.workloads import OF_MODEL

__all__ = ["Step", "is_compiled", "row_of", "step"]


def _struct(dtype: np.dtype[Any]) -> struct.Struct:
    # Through NumPy a row of twenty fields takes ten times as long to write.
    codes = {"i": "q", "f": "d"}
    result = struct.Struct("".join(codes[dtype[name].kind] for name in dtype.names or ()))
    assert result.size == dtype.itemsize, dtype
    return result


_EVENT: Final = _struct(EVENT_DTYPE)
_PLAN: Final = _struct(PLAN_DTYPE)
_NOTHING: Final[tuple[float, ...]] = (0,) * len(REPORT_DTYPE.names or ())
_AVAILABLE: Final = (REPORT_DTYPE.names or ()).index("available_gbps")

# Kind of a row, and the field that says where.
_KINDS: Final[dict[type, tuple[int, str]]] = {
    StepEnd: (events.END, "device"),
    Ready: (events.READY, "device"),
    Timer: (events.TIMER, "number"),
    Relaid: (events.RELAID, "device"),
    DeviceLost: (events.LOSS, "device"),
    DeviceBack: (events.BACK, "device"),
    BlocksLost: (events.BLOCKS_LOST, "device"),
    KeepWeights: (events.KEEP, "chip"),
    WeightsHere: (events.HERE, "chip"),
    ReleaseWeights: (events.RELEASE, "chip"),
    DropWeights: (events.DROP, "chip"),
}

# Of each fault: the event's field, and what is allowed.
_FAULTS: Final[dict[int, tuple[str, str]]] = {
    events.PROMPT: ("prompt_tokens", "at least 1"),
    events.OUTPUT: ("max_output_tokens", "at least 1"),
    events.MODEL: ("model", "below {}"),
    events.DEADLINE: ("deadline_s", "seconds above 0"),
    events.TIMERS: ("number", "below {}"),
    events.DEVICES: ("device", "below {}"),
    events.NOT_LOST: ("device", "a device that was lost"),
    events.NOT_LOADING: ("device", "a device that loads a model"),
    events.NOT_RUNNING: ("device", "a device that runs steps"),
    events.NOT_RELAYING: ("device", "one that `Relayout` named"),
    events.NOT_COMING: ("request_id", "a request whose KV cache is on its way"),
    events.NO_RATE: ("available_gbps", "above 0"),
    events.STEPS: ("report.steps", "1 to {}"),
    events.STRANGER: ("finished", "a request with a token in this step"),
} | {events.COUNTED + k: (f"report.{name}", "at least 0") for k, name in enumerate(events.COUNTS)}


def row_of(event: Event) -> tuple[int, int, int]:
    """Return kind, place and model of a requestless event."""
    kind, field = _KINDS[type(event)]
    return kind, getattr(event, field), getattr(event, "model", 0)


def is_compiled() -> bool:
    """Return whether machine code of the step is on disk."""
    return is_kept(take)


class Step:
    """One fleet's step, interpreted or as machine code."""

    def __init__(self, w: Loop, *, compiled: bool) -> None:
        """Load the machine code, or compile it (tens of seconds).

        Args:
          w: the loop; steps share policies' arrays.

        Raises:
          PolicyError: a policy cannot be compiled; with name, line and reason.
        """
        self._code = compiled_entry(take, (w, _exchange(w, 0))) if compiled else None
        self._hold(w)

    def _hold(self, w: Loop, ended: int = 0) -> None:
        x = _exchange(w, ended)
        self._w, self._x, s = w, x, w.s
        self._take = partial(take, w, x) if self._code is None else self._code.bound(w, x)
        self._event = memoryview(x.event.view(np.uint8))
        self._plans = memoryview(s.plan.view(np.uint8))
        self._models = s.instance.model.view(np.ndarray)
        self._gone = s.blocks.table.gone.view(np.ndarray)
        self._now_s, self._out = (s.count[name].view(np.ndarray) for name in ("now_s", "out"))

    def __call__(self, state: Serving, event: Event) -> tuple[Serving, tuple[Action, ...]]:
        """Return the state after an event, in `state`'s arrays, and actions.

        Ended requests are in `records[:count[0].out]`; set `out` to 0 after reading.
        """
        if state is not self._w.s:
            self._hold(self._w._replace(s=state))
        n = self._applied(event)
        if n == -events.FULL:
            self._grow()
            n = self._applied(event)
        if n < 0:
            raise self._error(event, -n)
        reply = self._x.asked[:n].tolist()
        actions = self._actions(reply)
        if reply[0] > 0:
            _tell_absent(self._w, actions)
        if self._gone[0]:
            _tell_forgotten(self._w.s, actions)
        return self._w.s, tuple(actions)

    def time_and_records(self) -> tuple[float, int]:
        """Return the loop's time and the count of records."""
        return float(self._now_s[0]), int(self._out[0])

    def _applied(self, event: Event) -> int:
        self._write(event)
        return self._take() or take_rare(self._w, self._x)

    def _grow(self) -> None:
        # One more request, and a record for every request there is.
        s = self._w.s
        if s.count[0].free_slots == 0:
            s = grow_requests(s, len(s.request))
        if s.count[0].out + len(s.request) > len(s.records):
            s = grow_records(s, 2 * len(s.request))
        self._hold(self._w._replace(s=s))

    def _write(self, event: Event) -> None:
        where = request = model = prompt = output = priority = calls_tool = count = 0
        ends_after_s, report = 0.0, _NOTHING
        if isinstance(event, Arrival):
            kind, request, model = events.ARRIVAL, event.request_id, event.model
            prompt, output = event.prompt_tokens, event.max_output_tokens
            priority = OF_MODEL if event.priority is None else event.priority
            ends_after_s, count = event.deadline_s, len(event.blocks)
            calls_tool = int(event.calls_tool)
            if count > len(self._x.blocks):
                s = self._w.s
                blocks = s.blocks.grown(len(s.request), count)
                self._hold(self._w._replace(s=s._replace(blocks=blocks)))
            self._x.blocks[:count] = event.blocks
        elif isinstance(event, Cancelled | HandedOver):
            kind = events.CANCEL if isinstance(event, Cancelled) else events.HANDED
            request = event.request_id
        else:
            kind, where, model = row_of(event)
        if isinstance(event, StepEnd):
            report, count = tuple(event.report), len(event.finished)
            if count > len(self._x.finished):
                self._hold(self._w, count)
            self._x.finished[:count] = event.finished
        elif isinstance(event, Ready):
            report = (*_NOTHING[:_AVAILABLE], event.available_gbps, *_NOTHING[_AVAILABLE + 1 :])
        _EVENT.pack_into(
            self._event, 0, kind, event.at_s, where, request, model, prompt, output, priority,
            ends_after_s, calls_tool, count, *report,
        )  # fmt: skip

    def _error(self, event: Any, fault: int) -> BackendError:
        field, allowed = _FAULTS[fault]
        if fault == events.NO_RATE and isinstance(event, StepEnd):
            field = f"report.{field}"
        value = attrgetter(field)(event)
        if fault == events.STRANGER:
            value = not_in_step(self._w.s, event.device, value)
        if isinstance(value, np.generic):
            value = value.item()
        limit = self._limit(event, fault) if "{}" in allowed else 0
        return BackendError(type(event).__name__, field, value, allowed.format(limit))

    def _limit(self, event: Any, fault: int) -> int:
        w = self._w
        if fault == events.STEPS:
            return most_steps(w.s, event.device)
        tables = {
            events.MODEL: w.fleet.deployment, events.TIMERS: w.s.timer_s,
            events.DEVICES: w.s.device,
        }  # fmt: skip
        return len(tables[fault])

    def _actions(self, words: list[int]) -> list[Action]:
        actions: list[Action] = []
        index, past, w = 1, len(words), self._w
        while index < past:
            code, where = words[index], words[index + 1]
            index += 2
            if code == ACT_RUN:
                run, index = self._run(where, words, index)
                actions.append(run)
            elif code == ACT_INTERRUPT:
                actions.append(Interrupt(device=where))
            else:
                actions.append(_action(w.fleet, w.s, code, where))
        return actions

    def _run(self, d: int, words: list[int], index: int) -> tuple[RunSteps, int]:
        plan = Plan(*_PLAN.unpack_from(self._plans, d * _PLAN.size))
        decodes_at = index + 2 + 3 * words[index]
        past = decodes_at + words[index + 1]
        prompts = iter(words[index + 2 : decodes_at])
        s, is_lane = self._w.s, self._w.fleet.opens_all  # whose step has its size by home, too
        run = RunSteps(
            device=d,
            instance=plan.instance,
            model=int(self._models[plan.instance]),
            plan=plan,
            prefills=tuple(zip(prompts, prompts, prompts, strict=True)),
            decodes=tuple(words[decodes_at:past]),
            split=s.split[d].copy() if is_lane else None,
            kv_homes=_kv_homes(s, d) if is_lane and s.taken.shape[1] > 0 else (),
        )
        return run, past


def _exchange(w: Loop, ended: int) -> Exchange:
    s, most = w.s, w.fleet.max_batch
    # Each device may be told of a run, of a whole batch.
    reply = np.zeros(1 + 2 * len(s.actions) + len(s.device) * (2 + 4 * most), np.int64)
    return Exchange(
        np.zeros(1, EVENT_DTYPE).view(np.recarray),
        np.zeros(max(most, ended), np.int64),
        np.zeros(s.blocks.keys.shape[1], np.int64),
        reply,
    )


def step(
    fleet: Fleet, rules: Rules, state: Serving, event: Event, *, donate: bool = False
) -> tuple[Serving, tuple[Action, ...]]:
    """Return the state after an event, and actions, interpreted.

    Args:
      donate: whether `state`'s arrays may be reused.

    Raises:
      BackendError: an impossible event.
    """
    copies: Any = () if donate else (field.copy() for field in state)
    s = state if donate else Serving(*copies)
    return Step(Loop(fleet, rules, s), compiled=False)(s, event)


def _tell_absent(w: Loop, actions: list[Action]) -> None:
    gone: dict[int, list[int]] = {}
    for k, entry in enumerate(w.s.hold):
        if entry.state == ABSENT:
            gone.setdefault(int(w.fleet.home_chip[k]), []).append(int(w.fleet.home_model[k]))
    first = next((n for n, a in enumerate(actions) if isinstance(a, Load)), len(actions))
    actions[first:first] = [
        Absent(chip=chip, models=tuple(models)) for chip, models in sorted(gone.items())
    ]


def _tell_forgotten(s: Serving, actions: list[Action]) -> None:
    blocks = s.blocks
    gone: dict[int, list[int]] = {}
    for device, key in blocks.gone[: blocks.table[0].gone].tolist():
        gone.setdefault(device, []).append(key)
    blocks.table[0].gone = 0
    actions[:0] = [ForgetBlocks(device=d, keys=tuple(keys)) for d, keys in sorted(gone.items())]


def _action(fleet: Fleet, s: Serving, code: int, where: int) -> Action:
    if code == ACT_FORGET:
        return Forget(request_id=where)
    if code == ACT_ASIDE:
        return SetAside(request_id=where)
    if code == ACT_TIMER:
        return SetTimer(at_s=float(s.timer_s[where]), number=where)
    if code == ACT_RELAYOUT:
        changed = [
            r for r in map(s.request.__getitem__, _batch(s, where)) if r.kv_next != r.kv_home
        ]
        return Relayout(
            device=where,
            version=int(s.relayout[where].wanted),
            sent_bytes=tuple(s.sent_bytes[where].tolist()),
            kv_homes=tuple((int(r.id), int(r.kv_next)) for r in changed),
        )
    if code == ACT_HAND:
        req = s.request[where]
        return HandOver(
            request_id=int(req.id),
            source=int(req.source),
            device=int(s.instance[req.instance].on_device),
            instance=int(req.instance),
            kv_bytes=float(req.handed_bytes),
            directly=bool(fleet.hands_directly),
        )
    if code == ACT_LOAD:
        plan = s.plan[where]
        inst = s.instance[plan.instance]
        return Load(
            device=where,
            instance=int(plan.instance),
            model=int(inst.model),
            is_cold=bool(inst.cold),
            kv_out_bytes=float(plan.kv_out_bytes),
        )
    return Unload(device=int(s.instance[where].on_device), instance=where)


def _batch(s: Serving, d: int) -> list[int]:
    i = int(s.device[d].first)
    inst = s.instance[i]
    prompts: list[int] = s.prefilling[i, : inst.n_prefill].tolist()
    decodes: list[int] = s.decoding[i, : inst.n_decode, SLOT].tolist()
    return prompts + decodes


def _kv_homes(s: Serving, d: int) -> tuple[int, ...]:
    i, inst = int(s.device[d].first), s.instance[s.device[d].first]
    prompts = [k for k in s.prefilling[i, : inst.n_prefill].tolist() if s.request[k].step_tokens]
    decodes = s.decoding[i, : s.plan[d].decodes, SLOT].tolist()
    return tuple(int(s.request[k].kv_home) for k in (*prompts, *decodes))
