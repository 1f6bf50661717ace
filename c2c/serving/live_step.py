"""Arrivals, loads and step ends: validity, state changes, resulting actions.

`c2c.serving.loop` calls these functions as Python. `take` combines them for machine code
(`c2c.serving.compiled_step`): it handles the same events as `loop.step`, except the rare ones.
"""

from __future__ import annotations

import math
from typing import Any, Final, NamedTuple

import numpy as np

from c2c.policies import jitable
from c2c.serving.actions import ACT_INTERRUPT, ACT_RUN
from c2c.serving.prefixes import begin_blocks
from c2c.serving.state import (
    FAIL_NONE,
    GONE,
    LOADING,
    REPORT_DTYPE,
    RUNNING,
    SLOT,
    Loop,
    Serving,
)
from c2c.serving.step import account_step, end_step, on_arrival, on_ready, start_asked
from c2c.serving.step_report import most_steps, not_in_step, take_finished, take_leaving

__all__ = [
    "ARRIVES",
    "COUNTED",
    "COUNTS",
    "ENDS",
    "EVENT_DTYPE",
    "IS_READY",
    "LEFT",
    "NOT_AVAILABLE",
    "NOT_LOADING",
    "NOT_RUNNING",
    "NO_FAULT",
    "STEPS",
    "STRANGER",
    "Told",
    "end_fault",
    "is_lost",
    "is_vain",
    "ready_fault",
    "take",
    "take_arrival",
    "take_end",
    "take_ready",
]

# Why an event cannot follow from what was asked.
NO_FAULT: Final = 0
NOT_LOADING: Final = 1  # the device loads nothing
NOT_RUNNING: Final = 2  # the device runs no steps
NOT_AVAILABLE: Final = 3  # a rate that is none
STEPS: Final = 4  # as many cannot have been done
STRANGER: Final = 5  # a request that finishes without a token in the step
COUNTED: Final = 6  # the first of COUNTS in the report is below 0 or without end; 7: the second...
COUNTS: Final = ("latency_s", "hbm", "c2c", "link_bytes", "hbm_bytes")


@jitable
def is_lost(s: Serving, d: int) -> bool:
    """Return True if device `d` is lost."""
    return bool(s.device[d].service == GONE)


@jitable
def _does(s: Serving, d: int, state: int) -> bool:
    running = s.device[d].running
    return bool(running >= 0 and s.instance[running].state == state)


@jitable
def ready_fault(s: Serving, d: int, available_gbps: float) -> int:
    """Return why device `d`, which is not lost, cannot have loaded a model, or NO_FAULT."""
    if not available_gbps > 0.0:
        return NOT_AVAILABLE
    return NO_FAULT if _does(s, d, LOADING) else NOT_LOADING


@jitable
def end_fault(s: Serving, d: int, report: Any, finished: Any) -> int:
    """Return why device `d`, which is not lost, cannot have ended steps as reported, or NO_FAULT.

    Args:
      report: row with the fields of `REPORT_DTYPE`.
      finished: ids of finished requests, a tuple or i8[n].
    """
    if not _does(s, d, RUNNING):
        return NOT_RUNNING
    if not 1 <= report.steps <= most_steps(s, d):
        return STEPS
    counts = (report.latency_s, report.hbm, report.c2c, report.link_bytes, report.hbm_bytes)
    for k in range(len(counts)):
        if not 0.0 <= counts[k] < math.inf:
            return COUNTED + k
    if not report.available_gbps > 0.0:
        return NOT_AVAILABLE
    return STRANGER if not_in_step(s, d, finished) >= 0 else NO_FAULT


@jitable
def take_arrival(
    w: Loop,
    now_s: float,
    request_id: int,
    model: int,
    prompt: int,
    output: int,
    priority: int,
    ends_after_s: float,
    blocks: Any,
) -> None:
    """Handle an arrival; `ends_after_s` is its deadline from now, `blocks` its own block keys."""
    slot = w.s.free_slots[w.s.count[0].free_slots - 1]  # that it gets
    if w.fleet.caches_prefixes:
        begin_blocks(w.s, slot, blocks, 0, len(blocks), len(blocks))
    req = w.s.request[slot]
    req.ends_by_s = now_s + ends_after_s
    req.ending = FAIL_NONE
    on_arrival(w, now_s, request_id, model, prompt, output, priority)


@jitable
def take_ready(w: Loop, d: int, available_gbps: float, now_s: float) -> None:
    """Handle the end of a load on device `d` (checked by `ready_fault`)."""
    w.s.report[d].available_gbps = available_gbps
    on_ready(w, d, now_s)


@jitable
def take_end(w: Loop, d: int, report: Any, finished: Any, now_s: float) -> None:
    """Handle the end of steps on device `d` (checked by `end_fault`)."""
    known = w.s.report[d]
    known.steps = report.steps
    known.latency_s = report.latency_s
    known.hbm = report.hbm
    known.c2c = report.c2c
    known.available_gbps = report.available_gbps
    known.link_bytes = report.link_bytes
    known.hbm_bytes = report.hbm_bytes
    known.alone_s = report.alone_s
    take_finished(w.fleet, w.s, d, finished)
    account_step(w, d)
    take_leaving(w, d, finished, now_s)
    end_step(w, d, now_s)


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
def is_vain(s: Serving, k: int) -> bool:
    """Return True if the k-th action is void: a duplicate, or an interrupt of an ended run."""
    if s.actions[k, 0] == ACT_INTERRUPT and not _still_runs(s, s.actions[k, 1]):
        return True
    for j in range(k):
        if s.actions[j, 0] == s.actions[k, 0] and s.actions[j, 1] == s.actions[k, 1]:
            return True
    return False


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
        ("blocks", "i8"),  # how many of the request's prompt
        *((name, REPORT_DTYPE[name]) for name in REPORT_DTYPE.names or ()),
    ],
    align=True,
)


class Told(NamedTuple):
    """Input and output of the compiled step.

    Attributes:
      event: `EVENT_DTYPE` [1].
      finished: i8[n] ids of finished requests; the event holds their number.
      blocks: i8[n] keys of a prompt's blocks; the event holds their number.
      asked: i8[...] output: number of models evicted from host memory, then each action once with
        its code and position. A run adds its requests: numbers of prompts and decodes, (id, first,
        tokens) of the prompts, ids of the decodes.
    """

    event: Any
    finished: Any
    blocks: Any
    asked: Any


@jitable
def _is_expected(s: Serving, e: Any, finished: Any) -> bool:
    if e.kind == ARRIVES:
        return True
    if not 0 <= e.device < len(s.device) or is_lost(s, e.device):
        return False
    if e.kind == IS_READY:
        return bool(ready_fault(s, e.device, e.available_gbps) == NO_FAULT)
    return bool(end_fault(s, e.device, e, finished) == NO_FAULT)


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
    asked[first + 1] = s.plan[d].decodes
    for j in range(s.plan[d].decodes):
        asked[n] = s.request[s.decoding[i, j, SLOT]].id
        n += 1
    return n


@jitable
def _tell(s: Serving, dropped: int, asked: Any) -> int:
    asked[0] = dropped
    n = 1
    for k in range(s.count[0].actions):
        if is_vain(s, k):
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
def take(w: Loop, told: Told) -> int:
    """Handle an event, if it is of a supported kind and no deadline has passed.

    Returns:
      Count of numbers in `told.asked`, or LEFT.
    """
    s = w.s
    e = told.event[0]
    finished = told.finished[: e.finished]
    count = s.count[0]
    now_s = max(e.at_s, count.now_s)
    if now_s >= s.timer_s[0] or not _has_room(s) or not _is_expected(s, e, finished):
        return LEFT
    count.now_s = now_s
    dropped = int(count.dropped)
    if e.kind == ENDS:
        take_end(w, e.device, e, finished, now_s)
    elif e.kind == IS_READY:
        take_ready(w, e.device, e.available_gbps, now_s)
    else:
        take_arrival(
            w, now_s,
            e.request_id, e.model, e.prompt, e.output, e.priority, e.ends_after_s,
            told.blocks[: e.blocks],
        )  # fmt: skip
    start_asked(w, now_s)
    return _tell(s, count.dropped - dropped, told.asked)
