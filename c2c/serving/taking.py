"""The events of every step, taken in by machine code: what a live engine spends its time on.

`take` is the compiled entry behind `c2c.serving.compiled_step`; it does what
`c2c.serving.loop.step` does for arrivals, loads and ends of steps, and leaves others to that.
"""

from __future__ import annotations

import math
from typing import Any, Final, NamedTuple

import numpy as np

from c2c.policies import jitable
from c2c.serving.actions import ACT_INTERRUPT, ACT_RUN
from c2c.serving.reported import most_steps, not_in_step, take_finished, take_leaving
from c2c.serving.state import (
    FAIL_NONE,
    GONE,
    LOADING,
    REPORT_DTYPE,
    RUNNING,
    SLOT,
    Fleet,
    Rules,
    Serving,
)
from c2c.serving.step import account_step, end_step, on_arrival, on_ready, start_asked

__all__ = ["ARRIVES", "ENDS", "EVENT_DTYPE", "IS_READY", "LEFT", "Told", "take"]

# Nothing was changed: `loop.step` is to take the event, or to refuse it.
LEFT: Final = -1

# Kinds of events.
ARRIVES: Final = 0
IS_READY: Final = 1
ENDS: Final = 2

# `Arrival`, `Ready` or `StepEnd` as a row; of the other two a kind's fields mean nothing.
EVENT_DTYPE: Final = np.dtype(
    [
        ("kind", "i8"),
        ("at_s", "f8"),
        ("device", "i8"),
        ("request_id", "i8"),
        ("model", "i8"),
        ("prompt", "i8"),
        ("output", "i8"),
        ("priority", "i8"),
        ("ends_after_s", "f8"),
        ("finished", "i8"),  # how many requests
        *((name, REPORT_DTYPE[name]) for name in REPORT_DTYPE.names or ()),
    ],
    align=True,
)


class Told(NamedTuple):
    """What goes in and out.

    Attributes:
      event: `EVENT_DTYPE` [1].
      finished: i8[n] ids of requests, the first of which the event names.
      asked: i8[...] takes how many models gave way in host memory, and the actions, each once: its
        code and where, and of a run whom it computes: how many prompts, how many that decode, (id,
        first, tokens) of those, ids of these.
    """

    event: Any
    finished: Any
    asked: Any


@jitable
def _is_sound(s: Serving, e: Any, finished: Any) -> bool:
    # Whether an end of a step is one that can be.
    if not 1 <= e.steps <= most_steps(s, e.device) or not e.available_gbps > 0.0:
        return False
    if not (0.0 <= e.latency_s < math.inf and 0.0 <= e.hbm < math.inf and 0.0 <= e.c2c < math.inf):
        return False
    if not (0.0 <= e.link_bytes < math.inf and 0.0 <= e.hbm_bytes < math.inf):
        return False
    if s.plan[e.device].part + 1 < s.plan[e.device].parts:
        return len(finished) == 0
    return not_in_step(s, e.device, finished) < 0


@jitable
def _is_expected(s: Serving, e: Any, finished: Any) -> bool:
    if e.kind == ARRIVES:
        return True
    if not 0 <= e.device < len(s.device) or s.device[e.device].service == GONE:
        return False
    running = s.device[e.device].running
    wanted = LOADING if e.kind == IS_READY else RUNNING
    if running < 0 or s.instance[running].state != wanted:
        return False
    return _is_sound(s, e, finished) if e.kind == ENDS else e.available_gbps > 0.0


@jitable
def _take_report(s: Serving, e: Any) -> None:
    report = s.report[e.device]
    report.steps = e.steps
    report.latency_s = e.latency_s
    report.hbm = e.hbm
    report.c2c = e.c2c
    report.available_gbps = e.available_gbps
    report.link_bytes = e.link_bytes
    report.hbm_bytes = e.hbm_bytes
    report.alone_s = e.alone_s


@jitable
def _still_runs(s: Serving, d: int) -> bool:
    running = s.device[d].running
    if running < 0 or s.instance[running].state != RUNNING:
        return False
    for k in range(s.count[0].actions):
        if s.actions[k, 0] == ACT_RUN and s.actions[k, 1] == d:
            return False
    return True


@jitable
def _is_vain(s: Serving, k: int) -> bool:
    # Whether an action is not to be done: it stands there before, or interrupts what has ended.
    if s.actions[k, 0] == ACT_INTERRUPT and not _still_runs(s, s.actions[k, 1]):
        return True
    for j in range(k):
        if s.actions[j, 0] == s.actions[k, 0] and s.actions[j, 1] == s.actions[k, 1]:
            return True
    return False


@jitable
def _tell_run(s: Serving, d: int, asked: Any, n: int) -> int:
    i = s.plan[d].instance
    inst = s.instance[i]
    first = n
    n += 2
    for j in range(inst.n_prefill):
        req = s.request[s.prefilling[i, j]]
        if req.step_tokens > 0:
            asked[n] = req.id
            asked[n + 1] = req.prefilled
            asked[n + 2] = req.step_tokens
            n += 3
    asked[first] = (n - first - 2) // 3
    asked[first + 1] = inst.n_decode
    for j in range(inst.n_decode):
        asked[n] = s.request[s.decoding[i, j, SLOT]].id
        n += 1
    return n


@jitable
def _tell(s: Serving, dropped: int, asked: Any) -> int:
    asked[0] = dropped
    n = 1
    for k in range(s.count[0].actions):
        if _is_vain(s, k):
            continue
        asked[n] = s.actions[k, 0]
        asked[n + 1] = s.actions[k, 1]
        n += 2
        if s.actions[k, 0] == ACT_RUN:
            n = _tell_run(s, s.actions[k, 1], asked, n)
    s.count[0].actions = 0
    return n


@jitable
def _has_room(s: Serving) -> bool:
    return bool(s.count[0].free_slots > 0 and s.count[0].out + len(s.request) <= len(s.records))


@jitable
def take(fleet: Fleet, rules: Rules, s: Serving, told: Told) -> int:
    """Take an event in, if it is one of those, and no deadline has passed.

    Returns:
      How many numbers `told.asked` has, or LEFT.
    """
    e = told.event[0]
    finished = told.finished[: e.finished]
    count = s.count[0]
    now_s = max(e.at_s, count.now_s)
    if now_s >= count.timer_s or not _has_room(s) or not _is_expected(s, e, finished):
        return LEFT
    count.now_s = now_s
    dropped = int(count.dropped)
    d = e.device
    if e.kind == ENDS:
        _take_report(s, e)
        if s.plan[d].part + 1 == s.plan[d].parts:
            take_finished(fleet, s, d, finished)
        if not account_step(fleet, rules, s, d):
            take_leaving(fleet, s, d, finished, now_s)
            end_step(fleet, rules, s, d, now_s)
    elif e.kind == IS_READY:
        s.report[d].available_gbps = e.available_gbps
        on_ready(fleet, rules, s, d, now_s)
    else:
        req = s.request[s.free_slots[count.free_slots - 1]]  # the slot that it gets
        req.ends_by_s = now_s + e.ends_after_s
        req.ending = FAIL_NONE
        on_arrival(fleet, rules, s, now_s, e.request_id, e.model, e.prompt, e.output, e.priority)
    start_asked(fleet, rules, s, now_s)
    return _tell(s, count.dropped - dropped, told.asked)
