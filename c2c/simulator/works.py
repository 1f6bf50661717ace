"""Starts as graphs of works: who runs, who waits for whom, and what the link and the disk give.

A work takes its seconds alone while its resources give it what it asks, longer otherwise. The
phases of steps are users of the link beside it. Without a graph nothing here is called.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np

from c2c.policies import jitable
from c2c.serving import RESOURCES
from c2c.simulator.resources import DRAWS, Resources

__all__ = [
    "DISK",
    "LINK",
    "WORK_DTYPE",
    "Starts",
    "begin_works",
    "gather_works",
    "next_works",
    "spread_works",
]

LINK: Final = RESOURCES.index("link")
DISK: Final = RESOURCES.index("disk")

# Life of a work.
_ENDED: Final = 0  # or no part of this start
_WAITS: Final = 1
_RUNS: Final = 2

WORK_DTYPE = np.dtype(
    [
        ("state", "i8"),
        ("at_s", "f8"),  # `left` holds at this time
        ("left", "f8"),  # share of the work still to do
        ("speed", "f8"),  # 1: as alone
        ("end_s", "f8"),
    ],
    align=True,
)


class Starts(NamedTuple):
    """The works of each model's start on each kind of slice; no work: a start is one phase."""

    alone_s: Any  # f8[D, kind, works]
    moved: Any  # f8[D, kind, works] bytes, over each of its resources
    link_bytes: Any  # f8[D, kind, cold] that a whole start takes over the link
    on: Any  # i8[works, DRAWS]
    rank: Any  # i8[works]
    after: Any  # i8[works] bits of the works it follows
    when: Any  # i8[works] 0 always, 1 cold only, 2 only if host memory holds the weights


@jitable
def _go_on(starts: Starts, works: Any, d: int, now_s: float) -> int:
    # Begin what no work holds back any more; returns how many are not ended.
    left = 0
    for w in range(len(starts.after)):
        work = works[d, w]
        if work.state == _WAITS:
            held = False
            for v in range(w):
                if (starts.after[w] >> v) & 1 != 0 and works[d, v].state != _ENDED:
                    held = True
            if not held:
                work.state = _RUNS
                work.at_s = now_s
                work.left = 1.0
                work.speed = 0.0
                work.end_s = np.inf
        left += 1 if work.state != _ENDED else 0
    return left


@jitable
def begin_works(starts: Starts, works: Any, d: int, is_cold: int, now_s: float) -> int:
    """Begin a start on device `d`; returns how many works it has."""
    for w in range(len(starts.after)):
        out = (starts.when[w] == 1 and is_cold == 0) or (starts.when[w] == 2 and is_cold != 0)
        works[d, w].state = _ENDED if out else _WAITS
    return _go_on(starts, works, d, now_s)


@jitable
def next_works(starts: Starts, works: Any, d: int, now_s: float) -> int:
    """End the works of device `d` whose time has come and begin the next; returns what is left."""
    for w in range(len(starts.after)):
        work = works[d, w]
        if work.state == _RUNS and work.end_s <= now_s:
            work.state = _ENDED
    return _go_on(starts, works, d, now_s)


@jitable
def gather_works(
    starts: Starts, works: Any, d: int, model: int, kind: int, now_s: float, r: Resources, n: int
) -> int:
    """Bring the running works of device `d` up to now and write them as users from `n` on."""
    for w in range(len(starts.after)):
        work = works[d, w]
        if work.state != _RUNS:
            continue
        alone_s = starts.alone_s[model, kind, w]
        if alone_s > 0.0:
            work.left = max(0.0, work.left - (now_s - work.at_s) * work.speed / alone_s)
        work.at_s = now_s
        moved = starts.moved[model, kind, w]
        r.demand[n] = moved / alone_s if alone_s > 0.0 else 0.0
        r.rank[n] = starts.rank[w]
        for u in range(DRAWS):
            r.on[n, u] = starts.on[w, u] if moved > 0.0 else -1
            r.per[n, u] = 1.0
        n += 1
    return n


@jitable
def spread_works(
    starts: Starts, works: Any, d: int, model: int, kind: int, now_s: float, r: Resources, n: int
) -> tuple[int, float, float]:
    """Take the flows of the users that `gather_works` wrote from `n` on.

    Returns:
      The next user, when the first work ends, bytes/s over the link.
    """
    first_s = np.inf
    link = 0.0
    for w in range(len(starts.after)):
        work = works[d, w]
        if work.state != _RUNS:
            continue
        alone_s = starts.alone_s[model, kind, w]
        work.speed = r.flow[n] / r.demand[n] if r.demand[n] > 0.0 else 1.0
        work.end_s = now_s + work.left * alone_s / work.speed if work.speed > 0.0 else np.inf
        if alone_s <= 0.0:
            work.end_s = now_s
        first_s = min(first_s, work.end_s)
        for u in range(DRAWS):
            if r.on[n, u] == LINK:
                link += r.flow[n]
        n += 1
    return n, first_s, link
