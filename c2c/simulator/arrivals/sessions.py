"""Turns of sessions, a time to think after their predecessors."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from c2c.policies import inlined, jitable
from c2c.serving.tables.state import Serving
from c2c.workloads import RequestBlock, edges_of

__all__ = [
    "Sessions",
    "begin_turns",
    "new_sessions",
    "next_turn_s",
    "skip_turns",
    "take_turn",
    "turn_sent",
    "turns_ended",
]


class Sessions(NamedTuple):
    """Graph of the requests by row, and due ones by time and row.

    The end and the sending of r are nodes r and n + r.
    """

    first: Any  # i8[2 n + 1] of each node's first edge
    follows: Any  # i8[edges] the row that waits
    parents: Any  # i8[n] edges to a row from nodes that have not happened
    think_s: Any  # f8[n] from the last of its parents; NaN: it comes at its time
    session: Any  # i8[n]
    unended: Any  # i8[sessions] requests
    ids: Any  # i8[n] ascending
    due_s: Any  # f8[n], a heap
    due: Any  # i8[n]
    count: Any  # i8[1]


def new_sessions() -> Sessions:
    """Return empty sessions."""
    none = np.zeros(0, np.int64)
    one = np.zeros(1, np.int64)
    return Sessions(
        one, none, none, np.zeros(0), none, none, none, np.zeros(0), none, one.copy()
    )  # fmt: skip


def begin_turns(block: RequestBlock, ids: np.ndarray, *, is_closed: bool) -> Sessions:
    """Return the sessions of a block of all requests."""
    if block.think_s is None or block.session is None:
        return new_sessions()
    n, think_s = len(block), block.think_s.copy()
    parent, row = edges_of(block)
    waits = ~np.isnan(think_s[row])
    parent, row = parent[waits], row[waits]
    alone = np.ones(n, bool)
    alone[row] = False
    think_s[alone] = np.nan
    number = np.where(block.session < 0, -1 - np.arange(n), block.session)
    session = np.unique(number, return_inverse=True)[1]
    if is_closed:  # the other requests without a parent keep their distance from the first one
        roots = np.flatnonzero(alone)
        first = roots[np.unique(session[roots], return_index=True)[1]]
        later = np.setdiff1d(roots, first)
        begins = first[session[later]]
        think_s[later] = block.arrival_s[later] - block.arrival_s[begins]
        parent, row = np.concatenate([parent, n + begins]), np.concatenate([row, later])
    order = np.argsort(parent, kind="stable")
    return Sessions(
        first=np.searchsorted(parent[order], np.arange(2 * n + 1)),
        follows=row[order],
        parents=np.bincount(row, minlength=n),
        think_s=think_s,
        session=session,
        unended=np.bincount(session),
        ids=ids.astype(np.int64),
        due_s=np.zeros(n),
        due=np.zeros(n, np.int64),
        count=np.zeros(1, np.int64),
    )


@inlined
def next_turn_s(x: Sessions) -> float:
    """Return the next turn's time; inf: none."""
    return float(x.due_s[0]) if x.count[0] > 0 else np.inf


@inlined
def skip_turns(x: Sessions, cursor: Any, n: int) -> None:
    """Move the cursor past later turns, sent when due."""
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
def _happened(x: Sessions, node: int, now_s: float) -> None:
    # A request was sent or has ended: those that waited only for it come after a time to think.
    for edge in range(x.first[node], x.first[node + 1]):
        row = x.follows[edge]
        x.parents[row] -= 1
        if x.parents[row] > 0:
            continue
        k = int(x.count[0])
        x.count[0] += 1
        x.due_s[k], x.due[k] = now_s + x.think_s[row], row
        while k > 0 and _before(x, k, (k - 1) // 2):
            _swap(x, k, (k - 1) // 2)
            k = (k - 1) // 2


@inlined
def turn_sent(x: Sessions, row: int, now_s: float) -> None:
    """Schedule what comes with a request sent now."""
    if len(x.ids) > 0:
        _happened(x, len(x.ids) + row, now_s)


@jitable
def turns_ended(state: Serving, x: Sessions, first: int, now_s: float) -> int:
    """Schedule successors of records from `first` on; return ended sessions."""
    if len(x.ids) == 0:
        return int(state.count[0].out - first)
    ended = 0
    for r in range(first, state.count[0].out):
        row = int(np.searchsorted(x.ids, state.records[r].id))
        _happened(x, row, now_s)
        x.unended[x.session[row]] -= 1
        ended += x.unended[x.session[row]] == 0
    return int(ended)


@jitable
def take_turn(x: Sessions) -> int:
    """Remove the next due turn and return its row."""
    result, n = int(x.due[0]), int(x.count[0]) - 1
    x.count[0] = n
    _swap(x, 0, n)
    k = 0
    while True:
        least = k
        for child in (2 * k + 1, 2 * k + 2):
            if child < n and _before(x, child, least):
                least = child
        if least == k:
            return result
        _swap(x, k, least)
        k = least
