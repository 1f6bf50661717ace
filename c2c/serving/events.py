"""Events of the serving loop."""

from __future__ import annotations

import math
from typing import Any, Final, NamedTuple

import numpy as np

from c2c.policies import jitable
from c2c.serving.batches.moments import after_arrival, after_steps, at_timer, before_arrival
from c2c.serving.batches.timers import answer_timer, set_timer
from c2c.serving.device_loss import bring_back, lose_devices
from c2c.serving.early_end import earliest_deadline_s, end_request, expire, slot_of
from c2c.serving.memory.kv_homes import on_relaid
from c2c.serving.pins import (
    drop_weights_of,
    keep_weights_of,
    release_weights_of,
    take_weights_of,
)
from c2c.serving.step import on_arrival, on_carried, on_ready, start_asked
from c2c.serving.step_end import account_step, end_step
from c2c.serving.step_report import most_steps, not_in_step, take_finished, take_leaving
from c2c.serving.tables.actions import ACT_INTERRUPT, ACT_RUN, ACT_TIMER, emit
from c2c.serving.tables.block_table import clear
from c2c.serving.tables.state import (
    FAIL_CANCELLED,
    FAIL_DEADLINE,
    GONE,
    LOADING,
    REPORT_DTYPE,
    RUNNING,
    SENDS,
    SLOT,
    Loop,
    Serving,
)
from c2c.workloads import OF_MODEL

__all__ = [
    "ARRIVAL",
    "BACK",
    "BLOCKS_LOST",
    "CANCEL",
    "COUNTED",
    "COUNTS",
    "DROP",
    "END",
    "EVENT_DTYPE",
    "FULL",
    "HANDED",
    "HERE",
    "KEEP",
    "LEFT",
    "LOSS",
    "READY",
    "RELAID",
    "RELEASE",
    "TIMER",
    "Exchange",
    "apply_rare",
    "is_lost",
    "take",
    "take_rare",
]

# Kinds of events.
ARRIVAL: Final = 0
END: Final = 1  # of steps on device `where`
READY: Final = 2  # device `where` has loaded a model
CANCEL: Final = 3
TIMER: Final = 4  # timer `where`
RELAID: Final = 5  # device `where` has all that its next variant needs
HANDED: Final = 6  # the KV cache of a request has come
LOSS: Final = 7  # of device `where`
BACK: Final = 8
BLOCKS_LOST: Final = 9
KEEP: Final = 10  # of weights: model `model`, chip `where`
HERE: Final = 11
RELEASE: Final = 12
DROP: Final = 13

# Fields that a kind does not have mean nothing.
EVENT_DTYPE: Final = np.dtype(
    [
        ("kind", "i8"),
        ("at_s", "f8"),
        ("where", "i8"),
        ("request_id", "i8"),
        ("model", "i8"),
        ("prompt", "i8"),
        ("output", "i8"),
        ("priority", "i8"),
        ("ends_after_s", "f8"),
        ("calls_tool", "i8"),
        ("count", "i8"),  # of an arrival its blocks, of an end its finished requests
        *((name, REPORT_DTYPE[name]) for name in REPORT_DTYPE.names or ()),
    ],
    align=True,
)

# Why `take` has changed nothing, as negative numbers.
LEFT: Final = 0  # the kind is for `take_rare`
FULL: Final = 1  # a table has to grow
PROMPT: Final = 2
OUTPUT: Final = 3
MODEL: Final = 4
DEADLINE: Final = 5
TIMERS: Final = 6  # there are fewer
DEVICES: Final = 7  # there are fewer
NOT_LOST: Final = 8
NOT_LOADING: Final = 9
NOT_RUNNING: Final = 10
NOT_RELAYING: Final = 11
NOT_COMING: Final = 12
NO_RATE: Final = 13
STEPS: Final = 14  # as many cannot have been done
STRANGER: Final = 15  # a request finishes without a token in the step
COUNTED: Final = 16  # the first of COUNTS is below 0 or without end; 17: the second...
COUNTS: Final = ("latency_s", "hbm", "c2c", "link_bytes", "hbm_bytes")


class Exchange(NamedTuple):
    """Memory of an event and its actions.

    Attributes:
      event: `EVENT_DTYPE` [1].
      finished: i8[n] ids of finished requests.
      blocks: i8[n] keys of arrived blocks.
      asked: i8[...] output: models evicted from host memory, actions with code and position; of a
        run also counts of prompts and decodes, (id, first, tokens) and ids.
    """

    event: Any
    finished: Any
    blocks: Any
    asked: Any


@jitable
def is_lost(s: Serving, d: int) -> bool:
    """Return whether device `d` is lost."""
    return bool(s.device[d].service == GONE)


@jitable
def _does(s: Serving, d: int, state: int) -> bool:
    running = s.device[d].running
    return bool(running >= 0 and s.instance[running].state == state)


@jitable
def _fault_of_end(s: Serving, e: Any, finished: Any) -> int:
    d = e.where
    if not _does(s, d, RUNNING):
        return NOT_RUNNING
    if not 1 <= e.steps <= most_steps(s, d):
        return STEPS
    counts = (e.latency_s, e.hbm, e.c2c, e.link_bytes, e.hbm_bytes)
    for k in range(len(counts)):
        if not 0.0 <= counts[k] < math.inf:
            return COUNTED + k
    if not e.available_gbps > 0.0:
        return NO_RATE
    return STRANGER if not_in_step(s, d, finished) >= 0 else LEFT


@jitable
def _fault_of_arrival(w: Loop, e: Any) -> int:
    if e.prompt < 1:
        return PROMPT
    if e.output < 1:
        return OUTPUT
    if not 0 <= e.model < len(w.fleet.deployment):
        return MODEL
    return LEFT if e.ends_after_s > 0.0 else DEADLINE


@jitable
def _fault_of_handed(w: Loop, e: Any) -> int:
    slot = slot_of(w.s, e.request_id)
    if slot < 0:
        return LEFT  # it has ended meanwhile
    req = w.s.request[slot]
    is_coming = w.fleet.hands_directly and req.held_by >= 0 and req.handed_bytes > 0.0
    return LEFT if is_coming else NOT_COMING


@jitable
def _fault_of(w: Loop, e: Any, finished: Any) -> int:
    # Why the event cannot follow from what was asked; LEFT: it can.
    s, d, kind = w.s, e.where, e.kind
    if kind == ARRIVAL:
        return _fault_of_arrival(w, e)
    if kind == HANDED:
        return _fault_of_handed(w, e)
    if kind == TIMER:
        return LEFT if 0 <= d < len(s.timer_s) else TIMERS
    if kind == CANCEL or kind >= KEEP:
        return LEFT
    if not 0 <= d < len(s.device):
        return DEVICES
    if kind == BACK:
        return LEFT if is_lost(s, d) else NOT_LOST
    if is_lost(s, d):
        return LEFT
    if kind == END:
        return _fault_of_end(s, e, finished)
    if kind == READY:
        if not e.available_gbps > 0.0:
            return NO_RATE
        return LEFT if _does(s, d, LOADING) else NOT_LOADING
    return NOT_RELAYING if kind == RELAID and s.relayout[d].state != SENDS else LEFT


@jitable
def _arrive(w: Loop, e: Any, blocks: Any, now_s: float) -> None:
    slot = w.s.free_slots[w.s.count[0].free_slots - 1]  # that it gets
    before_arrival(w, slot, blocks, 0, e.count, e.count)
    w.s.request[slot].late_as = FAIL_DEADLINE
    w.s.request[slot].entry = e.model
    w.s.request[slot].calls_tool = e.calls_tool
    model = w.fleet.deployment[e.model]
    urgent = e.priority if e.priority != OF_MODEL else model.priority
    ends_by_s = now_s + min(e.ends_after_s, model.deadline_s)
    m = w.fleet.adapters.base[e.model]
    on_arrival(w, now_s, e.request_id, m, e.prompt, e.output, urgent, ends_by_s)
    after_arrival(w, slot, now_s)


@jitable
def _end(w: Loop, e: Any, finished: Any, now_s: float) -> None:
    d = e.where
    report = w.s.report[d]
    report.steps = e.steps
    report.latency_s = e.latency_s
    report.hbm = e.hbm
    report.c2c = e.c2c
    report.available_gbps = e.available_gbps
    report.link_bytes = e.link_bytes
    report.hbm_bytes = e.hbm_bytes
    report.alone_s = e.alone_s
    take_finished(w.fleet, w.s, d, finished)
    account_step(w, d)
    take_leaving(w, d, finished, now_s)
    end_step(w, d, now_s)
    after_steps(w, d, now_s)


@jitable
def _time(w: Loop, number: int, now_s: float) -> None:
    if number == 0:
        set_timer(w.s, 0, math.inf)
        at_timer(w, now_s)
    elif now_s >= w.s.timer_s[number]:  # else it went off early
        answer_timer(w, number, now_s)


@jitable
def _apply(w: Loop, x: Exchange, e: Any, now_s: float) -> None:
    kind = e.kind
    if kind == ARRIVAL:
        _arrive(w, e, x.blocks, now_s)
    elif kind == CANCEL:
        slot = slot_of(w.s, e.request_id)
        if slot >= 0:
            end_request(w, slot, FAIL_CANCELLED, now_s)
    elif kind == HANDED:
        slot = slot_of(w.s, e.request_id)
        if slot >= 0:
            on_carried(w, slot, now_s)
    elif kind == TIMER:
        _time(w, e.where, now_s)
    elif is_lost(w.s, e.where):
        pass  # it was under way when the device was lost
    elif kind == END:
        _end(w, e, x.finished[: e.count], now_s)
    elif kind == READY:
        w.s.report[e.where].available_gbps = e.available_gbps
        on_ready(w, e.where, now_s)
    else:
        on_relaid(w, e.where)


def apply_rare(w: Loop, kind: int, where: int, model: int, now_s: float) -> bool:
    """Apply an event of the kinds that `take` leaves; False: weights have no room."""
    if kind == BACK:
        bring_back(w, where, now_s)
    elif kind == KEEP:
        return keep_weights_of(w, model, where, now_s)
    elif kind == HERE:
        take_weights_of(w.fleet, w.s, model, where)
    elif kind == RELEASE:
        release_weights_of(w, model, where, now_s)
    elif kind == DROP:
        drop_weights_of(w, model, where, now_s)
    elif is_lost(w.s, where):
        pass  # with all that it held
    elif kind == BLOCKS_LOST:
        clear(w.s.blocks, where)
    else:
        lose_devices(w, (where,), now_s)
    return True


@jitable
def _still_runs(s: Serving, d: int) -> bool:
    # Whether the run that was to be interrupted is not the one whose end has just come.
    if not _does(s, d, RUNNING):
        return False
    for k in range(s.count[0].actions):
        if s.actions[k, 0] == ACT_RUN and s.actions[k, 1] == d:
            return False
    return True


@jitable
def _is_vain(s: Serving, k: int) -> bool:
    # A duplicate, or an interrupt of an ended run.
    if s.actions[k, 0] == ACT_INTERRUPT and not _still_runs(s, s.actions[k, 1]):
        return True
    for j in range(k):
        if s.actions[j, 0] == s.actions[k, 0] and s.actions[j, 1] == s.actions[k, 1]:
            return True
    return False


@jitable
def _write_run(s: Serving, d: int, words: Any, n: int) -> int:
    i = s.plan[d].instance
    inst = s.instance[i]
    first = n
    n += 2
    for j in range(inst.n_prefill):
        req = s.request[s.prefilling[i, j]]
        if req.step_tokens > 0:
            words[n] = req.id
            words[n + 1] = req.prefilled
            words[n + 2] = req.step_tokens
            n += 3
    words[first] = (n - first - 2) // 3
    words[first + 1] = s.plan[d].decodes
    for j in range(s.plan[d].decodes):
        words[n] = s.request[s.decoding[i, j, SLOT]].id
        n += 1
    return n


@jitable
def _emit_timer(w: Loop, e: Any) -> None:
    # After a timer went off, or for a nearer deadline: timer 0 stands at the next one, or earlier.
    s = w.s
    has_deadline = e.ends_after_s < math.inf or w.fleet.gives_up
    if e.kind == TIMER and e.where > 0:
        if s.timer_s[e.where] < math.inf:
            emit(s, ACT_TIMER, e.where)
    elif e.kind == TIMER or (e.kind == ARRIVAL and has_deadline):
        next_s = earliest_deadline_s(s)
        if next_s < s.timer_s[0]:
            set_timer(s, 0, next_s)
            emit(s, ACT_TIMER, 0)


@jitable
def _begin(w: Loop, x: Exchange, e: Any) -> int:
    # Check an event and set the clock; why it cannot be applied, as a negative number, or 1.
    s, count = w.s, w.s.count[0]
    if count.free_slots == 0 or count.out + len(s.request) > len(s.records):
        return -FULL
    fault = _fault_of(w, e, x.finished[: e.count])
    if fault != LEFT:
        return -fault
    count.now_s = max(e.at_s, count.now_s)
    x.asked[0] = count.dropped
    expire(w, count.now_s, e.kind == TIMER)
    return 1


@jitable
def _answer(w: Loop, x: Exchange, e: Any) -> int:
    # Let devices look for work, and write what is asked.
    s, reply = w.s, x.asked
    start_asked(w, s.count[0].now_s)
    _emit_timer(w, e)
    reply[0] = s.count[0].dropped - reply[0]
    n = 1
    for k in range(s.count[0].actions):
        if _is_vain(s, k):
            continue
        reply[n] = s.actions[k, 0]
        reply[n + 1] = s.actions[k, 1]
        n += 2
        if s.actions[k, 0] == ACT_RUN:
            n = _write_run(s, s.actions[k, 1], reply, n)
    s.count[0].actions = 0
    return n


@jitable
def take(w: Loop, x: Exchange) -> int:
    """Apply an event.

    Returns:
      Count of numbers in `x.asked`; or LEFT or a negative fault without change.
    """
    e = x.event[0]
    if e.kind >= LOSS:
        return LEFT
    can = _begin(w, x, e)
    if can < 0:
        return can
    _apply(w, x, e, w.s.count[0].now_s)
    return _answer(w, x, e)


def take_rare(w: Loop, x: Exchange) -> int:
    """Apply an event of the kinds that `take` leaves; return as it does."""
    e = x.event[0]
    can = _begin(w, x, e)
    if can < 0:
        return can
    apply_rare(w, int(e.kind), int(e.where), int(e.model), float(w.s.count[0].now_s))
    return _answer(w, x, e)
