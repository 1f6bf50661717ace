"""Pure step of the serving loop over the port, the form that a live engine drives.

`step` runs the same code as the compiled simulator. Events of live engines alone (unforeseen ends,
cancels, deadlines, lost devices) are handled around it, in `early_end` and `device_loss`. Without
such events both give the same records; the contract suite checks this.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from c2c.errors import BackendError
from c2c.serving.actions import (
    ACT_ASIDE,
    ACT_FORGET,
    ACT_HAND,
    ACT_INTERRUPT,
    ACT_LOAD,
    ACT_RELAYOUT,
    ACT_UNLOAD,
)
from c2c.serving.block_table import clear
from c2c.serving.device_loss import bring_back, lose_devices
from c2c.serving.early_end import (
    earliest_deadline_s,
    end_request,
    expire,
    slot_of,
)
from c2c.serving.kv_homes import on_relaid
from c2c.serving.live_step import (
    COUNTED,
    COUNTS,
    NO_FAULT,
    NOT_AVAILABLE,
    NOT_LOADING,
    NOT_RUNNING,
    STEPS,
    STRANGER,
    end_fault,
    is_lost,
    is_vain,
    ready_fault,
    take_arrival,
    take_end,
    take_ready,
)
from c2c.serving.pins import (
    drop_weights_of,
    keep_weights_of,
    release_weights_of,
    take_weights_of,
)
from c2c.serving.port import (
    Absent,
    Action,
    Arrival,
    Backend,
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
    Weights,
    WeightsHere,
)
from c2c.serving.state import (
    ABSENT,
    FAIL_CANCELLED,
    SENDS,
    SLOT,
    Fleet,
    Loop,
    Rules,
    Serving,
)
from c2c.serving.step import on_carried, start_asked
from c2c.serving.step_report import most_steps, not_in_step
from c2c.serving.table_growth import grow_records, grow_requests
from c2c.serving.timers import answer_timer, set_timer

__all__ = [
    "action_of",
    "check_arrival",
    "priority_of",
    "run",
    "step",
    "tell_absent",
    "tell_forgotten",
    "timer_of",
]


def _copy(state: Serving) -> Serving:
    return Serving(*(field.copy() for field in state))


def step(
    fleet: Fleet, rules: Rules, state: Serving, event: Event, *, donate: bool = False
) -> tuple[Serving, tuple[Action, ...]]:
    """Return the state after an event and the actions that follow from it.

    Records of ended requests are in `records[:count[0].out]`; set `out` to 0 after reading them.

    Args:
      donate: whether the step may reuse the arrays of `state` instead of copying them; the caller
        must not use `state` again.

    Raises:
      BackendError: the event cannot follow from what was asked; `state` is unusable if donated.
    """
    s = _with_room(state if donate else _copy(state), event)
    _check_device(s, event)
    _check_work(s, event)
    _check_relayout(s, event)
    count = s.count[0]
    now_s = max(float(event.at_s), float(count.now_s))
    count.now_s = now_s
    dropped = count.dropped
    w = Loop(fleet, rules, s)
    expire(w, now_s, also_now=isinstance(event, Timer))
    _take_in(w, event, now_s)
    start_asked(w, now_s)
    asked = s.actions[: count.actions].tolist()
    actions = [action_of(fleet, s, *each) for k, each in enumerate(asked) if not is_vain(s, k)]
    count.actions = 0
    if count.dropped != dropped:
        tell_absent(fleet, s, actions)
    if s.blocks.table[0].gone > 0:
        tell_forgotten(s, actions)
    return s, (*actions, *timer_of(s, event))


def _with_room(s: Serving, event: Event) -> Serving:
    # One more request, and a record for every request there is.
    if s.count[0].free_slots == 0:
        s = grow_requests(s, len(s.request))
    if s.count[0].out + len(s.request) > len(s.records):
        s = grow_records(s, 2 * len(s.request))
    if isinstance(event, Arrival) and len(event.blocks) > s.blocks.keys.shape[1]:
        s = s._replace(blocks=s.blocks.grown(len(s.request), len(event.blocks)))
    return s


def _take_in(w: Loop, event: Event, now_s: float) -> None:
    if isinstance(event, StepEnd):  # most events are
        if not is_lost(w.s, event.device):  # else it was under way when the device was lost
            take_end(w, event.device, event.report, event.finished, now_s)
    elif isinstance(event, Arrival):
        _arrive(w, event, now_s)
    elif isinstance(event, Cancelled):
        slot = slot_of(w.s, event.request_id)
        if slot >= 0:
            end_request(w, slot, FAIL_CANCELLED, now_s)
    elif isinstance(event, HandedOver):
        _take_handed(w, event, now_s)
    elif isinstance(event, Weights):
        _weigh(w, event, now_s)
    elif isinstance(event, Timer):
        _time(w, event.number, now_s)
    elif isinstance(event, DeviceBack):
        bring_back(w, event.device, now_s)
    elif is_lost(w.s, event.device):
        pass  # likewise
    elif isinstance(event, DeviceLost):
        lose_devices(w, (event.device,), now_s)
    elif isinstance(event, BlocksLost):
        clear(w.s.blocks, event.device)
    elif isinstance(event, Relaid):
        on_relaid(w, event.device)
    else:
        take_ready(w, event.device, event.available_gbps, now_s)


def _weigh(w: Loop, event: Weights, now_s: float) -> None:
    if isinstance(event, WeightsHere):
        take_weights_of(w.fleet, w.s, event.model, event.chip)
    elif isinstance(event, KeepWeights):
        keep_weights_of(w, event.model, event.chip, now_s)
    elif isinstance(event, ReleaseWeights):
        release_weights_of(w, event.model, event.chip, now_s)
    else:
        drop_weights_of(w, event.model, event.chip, now_s)


def _take_handed(w: Loop, event: HandedOver, now_s: float) -> None:
    slot = slot_of(w.s, event.request_id)
    if slot < 0:
        return  # it has ended meanwhile
    req = w.s.request[slot]
    if not (w.fleet.hands_directly and req.held_by >= 0 and req.handed_bytes > 0.0):
        raise BackendError(
            "HandedOver", "request_id", event.request_id, "a request whose KV cache is on its way"
        )
    on_carried(w, slot, now_s)


def _time(w: Loop, number: int, now_s: float) -> None:
    if number == 0:
        set_timer(w.s, 0, math.inf)
    elif now_s >= w.s.timer_s[number]:  # else it went off early
        answer_timer(w, number, now_s)


def check_arrival(fleet: Fleet, event: Arrival) -> None:
    """Validate an arriving request.

    Raises:
      BackendError: a field is out of range.
    """
    for field, value in (("prompt_tokens", event.prompt_tokens),
                         ("max_output_tokens", event.max_output_tokens)):  # fmt: skip
        if value < 1:
            raise BackendError("Arrival", field, value, "at least 1")
    if not 0 <= event.model < len(fleet.deployment):
        raise BackendError("Arrival", "model", event.model, f"below {len(fleet.deployment)}")
    if not event.deadline_s > 0.0:
        raise BackendError("Arrival", "deadline_s", event.deadline_s, "seconds above 0")


def _arrive(w: Loop, event: Arrival, now_s: float) -> None:
    check_arrival(w.fleet, event)
    take_arrival(
        w,
        now_s,
        event.request_id,
        event.model,
        event.prompt_tokens,
        event.max_output_tokens,
        priority_of(w.fleet, event),
        event.deadline_s,
        np.array(event.blocks, np.int64),
    )


def priority_of(fleet: Fleet, event: Arrival) -> int:
    """Return the priority of a request, by default that of its model."""
    if event.priority is not None:
        return event.priority
    return int(fleet.deployment[event.model].priority)


def _check_device(s: Serving, event: Event) -> None:
    if isinstance(event, Timer) and not 0 <= event.number < len(s.timer_s):
        raise BackendError("Timer", "number", event.number, f"below {len(s.timer_s)}")
    if not isinstance(event, (Ready, StepEnd, DeviceLost, DeviceBack, BlocksLost, Relaid)):
        return
    name = type(event).__name__
    if not 0 <= event.device < len(s.device):
        raise BackendError(name, "device", event.device, f"below {len(s.device)}")
    if isinstance(event, DeviceBack) and not is_lost(s, event.device):
        raise BackendError(name, "device", event.device, "a device that was lost")


def _check_work(s: Serving, event: Event) -> None:
    if not isinstance(event, (Ready, StepEnd)) or is_lost(s, event.device):
        return
    if isinstance(event, Ready):
        fault = ready_fault(s, event.device, event.available_gbps)
    else:
        fault = end_fault(s, event.device, event.report, event.finished)
    if fault != NO_FAULT:
        raise BackendError(type(event).__name__, *_said(s, event, fault))


def _check_relayout(s: Serving, event: Event) -> None:
    if not isinstance(event, Relaid) or is_lost(s, event.device):
        return
    if s.relayout[event.device].state != SENDS:
        raise BackendError("Relaid", "device", event.device, "one that `Relayout` named")


def _said(s: Serving, event: Ready | StepEnd, fault: int) -> tuple[str, Any, str]:
    """Return the error of an invalid event: the field, its value, and what is allowed."""
    d = event.device
    if fault == NOT_LOADING:
        return "device", d, "a device that loads a model"
    if fault == NOT_RUNNING:
        return "device", d, "a device that runs steps"
    if isinstance(event, Ready):
        return "available_gbps", event.available_gbps, "above 0"
    report: Any = event.report
    if fault == NOT_AVAILABLE:
        return "report.available_gbps", float(report.available_gbps), "above 0"
    if fault == STEPS:
        return "report.steps", int(report.steps), f"1 to {most_steps(s, d)}"
    if fault == STRANGER:
        stranger = not_in_step(s, d, event.finished)
        return "finished", stranger, "a request with a token in this step"
    name = COUNTS[fault - COUNTED]
    return f"report.{name}", float(getattr(report, name)), "at least 0"


def timer_of(s: Serving, event: Event) -> tuple[Action, ...]:
    """Return the action that sets a timer: after one went off, or for a nearer deadline."""
    if isinstance(event, Timer) and event.number > 0:
        at_s = float(s.timer_s[event.number])
        return (SetTimer(at_s=at_s, number=event.number),) if at_s < math.inf else ()
    # It is set to the next deadline or earlier; only these events have a nearer one.
    if not (
        isinstance(event, Timer) or (isinstance(event, Arrival) and event.deadline_s < math.inf)
    ):
        return ()
    next_s = earliest_deadline_s(s)
    if next_s >= s.timer_s[0]:
        return ()
    set_timer(s, 0, next_s)
    return (SetTimer(at_s=next_s),)


def tell_absent(fleet: Fleet, s: Serving, actions: list[Action]) -> None:
    """Add the models whose weights are in no memory to the actions, before any load."""
    gone: dict[int, list[int]] = {}
    for k, entry in enumerate(s.hold):
        if entry.state == ABSENT:
            gone.setdefault(int(fleet.home_chip[k]), []).append(int(fleet.home_model[k]))
    first = next((n for n, a in enumerate(actions) if isinstance(a, Load)), len(actions))
    actions[first:first] = [
        Absent(chip=chip, models=tuple(models)) for chip, models in sorted(gone.items())
    ]


def tell_forgotten(s: Serving, actions: list[Action]) -> None:
    """Add the dropped blocks to the actions, before all others."""
    blocks = s.blocks
    gone: dict[int, list[int]] = {}
    for device, key in blocks.gone[: blocks.table[0].gone].tolist():
        gone.setdefault(device, []).append(key)
    blocks.table[0].gone = 0
    actions[:0] = [ForgetBlocks(device=d, keys=tuple(keys)) for d, keys in sorted(gone.items())]


def action_of(fleet: Fleet, s: Serving, code: int, where: int) -> Action:
    """Decode an action from the buffer of numbers."""
    if code == ACT_UNLOAD:
        return Unload(device=int(s.instance[where].on_device), instance=where)
    if code == ACT_INTERRUPT:
        return Interrupt(device=where)
    if code == ACT_FORGET:
        return Forget(request_id=where)
    if code == ACT_ASIDE:
        return SetAside(request_id=where)
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
    plan = Plan(*s.plan[where].item())
    i = plan.instance
    inst = s.instance[i]
    if code == ACT_LOAD:
        return Load(
            device=where,
            instance=i,
            model=int(inst.model),
            is_cold=bool(inst.cold),
            kv_out_bytes=plan.kv_out_bytes,
        )
    prefills = [s.request[k] for k in s.prefilling[i, : inst.n_prefill].tolist()]
    return RunSteps(
        device=where,
        instance=i,
        model=int(inst.model),
        plan=plan,
        prefills=tuple(
            (int(r.id), int(r.prefilled), int(r.step_tokens)) for r in prefills if r.step_tokens
        ),
        decodes=tuple(int(s.request[k].id) for k in s.decoding[i, : plan.decodes, SLOT].tolist()),
        split=s.split[where].copy(),
        kv_homes=_kv_homes(s, where) if s.taken.shape[1] > 0 else (),
    )


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


def run(fleet: Fleet, rules: Rules, state: Serving, backend: Backend) -> Serving:
    """Serve until the backend has no more events; `state` is donated and keeps all records."""
    while (event := backend.next_event()) is not None:
        state, actions = step(fleet, rules, state, event, donate=True)
        backend.submit(float(state.count[0].now_s), actions)
    return state
