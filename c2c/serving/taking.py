"""The events of every step, taken in by machine code: what a live engine spends its time on.

`take` is the compiled entry behind `c2c.serving.compiled_step`; it does what
`c2c.serving.loop.step` does for arrivals, loads and ends of steps, and leaves others to that.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np

from c2c.policies import jitable
from c2c.serving.actions import ACT_RUN
from c2c.serving.frequent import (
    NO_FAULT,
    end_fault,
    is_lost,
    is_vain,
    ready_fault,
    take_arrival,
    take_end,
    take_ready,
)
from c2c.serving.state import REPORT_DTYPE, SLOT, Fleet, Rules, Serving
from c2c.serving.step import start_asked

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
def take(fleet: Fleet, rules: Rules, s: Serving, told: Told) -> int:
    """Take an event in, if it is one of those, and no deadline has passed.

    Returns:
      How many numbers `told.asked` has, or LEFT.
    """
    e = told.event[0]
    finished = told.finished[: e.finished]
    count = s.count[0]
    now_s = max(e.at_s, count.now_s)
    if now_s >= s.timer_s[0] or not _has_room(s) or not _is_expected(s, e, finished):
        return LEFT
    count.now_s = now_s
    dropped = int(count.dropped)
    if e.kind == ENDS:
        take_end(fleet, rules, s, e.device, e, finished, now_s)
    elif e.kind == IS_READY:
        take_ready(fleet, rules, s, e.device, e.available_gbps, now_s)
    else:
        take_arrival(
            fleet, rules, s, now_s,
            e.request_id, e.model, e.prompt, e.output, e.priority, e.ends_after_s,
        )  # fmt: skip
    start_asked(fleet, rules, s, now_s)
    return _tell(s, count.dropped - dropped, told.asked)
