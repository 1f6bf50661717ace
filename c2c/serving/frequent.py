"""The events of every step: which of them can be, what they do, and which actions follow.

One set of rules, read by `c2c.serving.loop` as Python and by `c2c.serving.taking` as machine code.
"""

from __future__ import annotations

import math
from typing import Any, Final

from c2c.policies import jitable
from c2c.serving.actions import ACT_INTERRUPT, ACT_RUN
from c2c.serving.reported import most_steps, not_in_step, take_finished, take_leaving
from c2c.serving.state import FAIL_NONE, GONE, LOADING, RUNNING, Fleet, Rules, Serving
from c2c.serving.step import account_step, end_step, on_arrival, on_ready

__all__ = [
    "COUNTED",
    "COUNTS",
    "LATER",
    "NOT_AVAILABLE",
    "NOT_LOADING",
    "NOT_RUNNING",
    "NO_FAULT",
    "STEPS",
    "STRANGER",
    "end_fault",
    "is_lost",
    "is_vain",
    "ready_fault",
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
LATER: Final = 5  # requests that finish before a step's last part
STRANGER: Final = 6  # a request that finishes without a token in the step
COUNTED: Final = 7  # the first of COUNTS in the report is below 0 or without end; 8: the second...
COUNTS: Final = ("latency_s", "hbm", "c2c", "link_bytes", "hbm_bytes")


@jitable
def is_lost(s: Serving, d: int) -> bool:
    """Return whether device `d` is gone."""
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
    """Return why device `d`, which is not lost, cannot have ended steps so, or NO_FAULT.

    Args:
      report: a row with the fields of `REPORT_DTYPE`.
      finished: ids of requests, a tuple or i8[n].
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
    if s.plan[d].part + 1 < s.plan[d].parts:
        return LATER if len(finished) > 0 else NO_FAULT
    return STRANGER if not_in_step(s, d, finished) >= 0 else NO_FAULT


@jitable
def take_arrival(
    fleet: Fleet,
    rules: Rules,
    s: Serving,
    now_s: float,
    request_id: int,
    model: int,
    prompt: int,
    output: int,
    priority: int,
    ends_after_s: float,
) -> None:
    """Take in a request; `ends_after_s` is its deadline, from now."""
    req = s.request[s.free_slots[s.count[0].free_slots - 1]]  # the slot that it gets
    req.ends_by_s = now_s + ends_after_s
    req.ending = FAIL_NONE
    on_arrival(fleet, rules, s, now_s, request_id, model, prompt, output, priority)


@jitable
def take_ready(
    fleet: Fleet, rules: Rules, s: Serving, d: int, available_gbps: float, now_s: float
) -> None:
    """Take in that device `d` has loaded its model (`ready_fault`)."""
    s.report[d].available_gbps = available_gbps
    on_ready(fleet, rules, s, d, now_s)


@jitable
def take_end(
    fleet: Fleet, rules: Rules, s: Serving, d: int, report: Any, finished: Any, now_s: float
) -> None:
    """Take in that device `d` has ended steps (`end_fault`)."""
    known = s.report[d]
    known.steps = report.steps
    known.latency_s = report.latency_s
    known.hbm = report.hbm
    known.c2c = report.c2c
    known.available_gbps = report.available_gbps
    known.link_bytes = report.link_bytes
    known.hbm_bytes = report.hbm_bytes
    known.alone_s = report.alone_s
    if s.plan[d].part + 1 == s.plan[d].parts:
        take_finished(fleet, s, d, finished)
    if not account_step(fleet, rules, s, d):
        take_leaving(fleet, rules, s, d, finished, now_s)
        end_step(fleet, rules, s, d, now_s)


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
    """Return whether the k-th action is not to be done.

    It stands there before, or interrupts what has ended.
    """
    if s.actions[k, 0] == ACT_INTERRUPT and not _still_runs(s, s.actions[k, 1]):
        return True
    for j in range(k):
        if s.actions[j, 0] == s.actions[k, 0] and s.actions[j, 1] == s.actions[k, 1]:
            return True
    return False
