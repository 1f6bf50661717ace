"""Turns of sessions: each is sent a thinking time after the one before has ended."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from c2c.policies import inlined, jitable
from c2c.serving.state import Serving
from c2c.workloads import RequestBlock

__all__ = [
    "Sessions",
    "begin_turns",
    "new_sessions",
    "next_turn_s",
    "skip_turns",
    "take_turn",
    "turns_ended",
]


class Sessions(NamedTuple):
    """Successor of each request, and due requests by time and index in the workload.

    A request is identified by its row in a block that holds all of them. Without sessions all
    arrays are empty.
    """

    follows: Any  # i8[n] the row of the turn after it, -1: none
    think_s: Any  # f8[n] from the end of the turn before; NaN: it comes at its time
    ids: Any  # i8[n] ascending
    due_s: Any  # f8[n], a heap
    due: Any  # i8[n]
    count: Any  # i8[1]


def new_sessions() -> Sessions:
    """Return empty sessions."""
    none = np.zeros(0, np.int64)
    return Sessions(none, np.zeros(0), none, np.zeros(0), none, np.zeros(1, np.int64))


def begin_turns(block: RequestBlock, ids: np.ndarray) -> Sessions:
    """Return the sessions of a block that holds all requests, before the first one."""
    if block.think_s is None or block.session is None:
        return new_sessions()
    n = len(block)
    follows, think_s = np.full(n, -1), block.think_s.copy()
    order = np.argsort(block.session, kind="stable")
    same = np.diff(block.session[order]) == 0
    same &= block.session[order][1:] >= 0
    before, after = order[:-1][same], order[1:][same]
    waits = ~np.isnan(think_s[after])
    follows[before[waits]] = after[waits]
    alone = np.ones(n, bool)
    alone[after[waits]] = False
    think_s[alone] = np.nan
    return Sessions(
        follows, think_s, ids.astype(np.int64), np.zeros(n), np.zeros(n, np.int64),
        np.zeros(1, np.int64),
    )  # fmt: skip


@inlined
def next_turn_s(x: Sessions) -> float:
    """Return the time of the next turn; inf: none."""
    return float(x.due_s[0]) if x.count[0] > 0 else np.inf


@inlined
def skip_turns(x: Sessions, cursor: Any, n: int) -> None:
    """Move the cursor past later turns, which are sent when they are due."""
    while cursor[0] < n and x.think_s[cursor[0]] >= 0.0:
        cursor[0] += 1


@jitable
def _before(x: Sessions, a: int, b: int) -> bool:
    return bool(x.due_s[a] < x.due_s[b] or (x.due_s[a] == x.due_s[b] and x.due[a] < x.due[b]))


@jitable
def _swap(x: Sessions, a: int, b: int) -> None:
    x.due_s[a], x.due_s[b] = x.due_s[b], x.due_s[a]
    x.due[a], x.due[b] = x.due[b], x.due[a]


@jitable
def _turn_ended(x: Sessions, request_id: int, now_s: float) -> None:
    # A request has ended: the turn after it, if there is one, comes after a time to think.
    row = x.follows[np.searchsorted(x.ids, request_id)]
    if row < 0:
        return
    k = int(x.count[0])
    x.count[0] += 1
    x.due_s[k], x.due[k] = now_s + x.think_s[row], row
    while k > 0 and _before(x, k, (k - 1) // 2):
        _swap(x, k, (k - 1) // 2)
        k = (k - 1) // 2


@jitable
def turns_ended(state: Serving, x: Sessions, first: int, now_s: float) -> None:
    """Schedule the successors of requests whose records are in the buffer from `first` on."""
    if len(x.follows) == 0:
        return
    for r in range(first, state.count[0].out):
        _turn_ended(x, int(state.records[r].id), now_s)


@jitable
def take_turn(x: Sessions) -> int:
    """Remove the next due turn and return its row."""
    found, n = int(x.due[0]), int(x.count[0]) - 1
    x.count[0] = n
    _swap(x, 0, n)
    k = 0
    while True:
        least = k
        for child in (2 * k + 1, 2 * k + 2):
            if child < n and _before(x, child, least):
                least = child
        if least == k:
            return found
        _swap(x, k, least)
        k = least
