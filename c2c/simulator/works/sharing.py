"""Sharing of a chip's resources among its works."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from c2c.policies import inlined, jitable
from c2c.simulator.works.phases import advance, remaining_s
from c2c.simulator.works.resources import DRAWS, Resources, share
from c2c.simulator.works.works import ROUNDING, RUNS, Works, bring_up, walk

__all__ = ["share_rows"]

_STILL: Final = 1e-6  # flow of a run that stands still: its length stays finite


@inlined
def _row(k: int, first: int, last: int, beside: int) -> int:
    return first + k if first + k < last else beside + k - (last - first) + first


@jitable
def share_rows(
    works: Works, phase: Any, busy: Any, end_s: Any, first: int, last: int, beside: int, link: int,
    by_age: bool, now_s: float, r: Resources,
) -> float:  # fmt: skip
    """Share a chip's resources and re-time its rows; return link bytes/s."""
    once, several = 0, 0  # bits of the resources that a row uses, or several
    rows = (last - first) * (2 if beside > 0 else 1)
    for k in range(rows):
        i = _row(k, first, last, beside)
        if busy[i] != 0:
            uses = works.step[i].uses if phase[i].works != 0 else 1 << link
            several |= once & uses
            once |= uses
    n = 0
    for k in range(rows):
        i = _row(k, first, last, beside)
        p = phase[i]
        if busy[i] != 0 and p.works != 0:
            works.step[i].others = several | (once & ~works.step[i].uses)
            n = _gather(works, i, p, several, by_age, now_s, r, n)
        elif busy[i] != 0:
            _advance(p, now_s)
            r.demand[n] = p.demand if p.done < p.steps else 0.0
            r.rank[n] = 0
            r.on[n, 0] = link
            r.per[n, 0] = 1.0
            for u in range(1, DRAWS):
                r.on[n, u] = -1
            n += 1
    share(r, n)
    n = 0
    total = 0.0
    for k in range(rows):
        i = _row(k, first, last, beside)
        p = phase[i]
        if busy[i] != 0 and p.works != 0:
            n, end_s[i] = _spread(works, i, p, link, r, n)
        elif busy[i] != 0:
            p.rate = r.flow[n]
            # Steps that a higher rank leaves nothing stand still until shares are found again.
            p.limit_s = 0.0 if p.rate >= p.demand else p.link_bytes / max(p.rate, 1.0)
            end_s[i] = p.at_s + remaining_s(p)
            n += 1
        if busy[i] != 0:
            total += p.rate
    return total


@inlined
def _advance(p: Any, now_s: float) -> None:
    # What has ended but for rounding has ended: a higher rank would leave the rest no flow.
    advance(p, now_s)
    if p.done == p.steps - 1 and p.part > 1.0 - ROUNDING:
        p.done = p.steps
        p.part = 0.0


@inlined
def _gather(
    works: Works, d: int, p: Any, several: int, by_age: bool, now_s: float, r: Resources, n: int
) -> int:
    # Bring the run of row `d` up to now and write what it asks for as users from `n` on.
    step = works.step[d]
    rank = -step.order if by_age else 0
    if step.works == 1 and step.grows == 0:
        _advance(p, now_s)
        return n if p.done >= p.steps else _ask(works, d, 0, 0, p.base_s, rank, r, n)
    if p.done >= p.steps:
        return n
    is_apart = step.uses & several == 0
    if p.works > 1:
        bring_up(works, d, p, now_s)
        if is_apart and step.is_fresh != 0 and step.inside == 0 and p.is_load == 0:
            p.works = 1  # one closed form again
    elif not is_apart:
        advance(p, now_s)
        if p.done < p.steps:
            walk(works, d, p)
    if p.works > 1:
        for w in range(step.works):
            work = works.work[d, w]
            if work.state == RUNS:
                seconds = work.alone_s + work.slope_s * p.done
                n = _ask(works, d, w, p.done, seconds, rank, r, n)
    return n


@inlined
def _ask(
    works: Works, d: int, w: int, done: int, seconds: float, rank: int, r: Resources, n: int
) -> int:
    # A flow of 1 is a byte a second, or as much of a device as the link takes to move a byte.
    r.rank[n] = (works.work[d, w].rank << 32) + rank
    r.demand[n] = 0.0
    first = 0.0
    # With nothing left it asks for nothing: a higher rank would leave it no flow, for ever.
    is_walked = works.step[d].works > 1 or works.step[d].grows != 0
    is_over = is_walked and works.work[d, w].left <= 0.0
    for u in range(DRAWS):
        k = -1 if is_over else works.on[d, w, u]
        r.on[n, u] = k
        if k >= 0:
            amount = works.amount[d, w, u] + works.growth[d, w, u] * done
            if u == 0:
                first = amount * works.unit[k]
                r.demand[n] = first / seconds
            r.per[n, u] = amount / first
    return n + 1


@inlined
def _spread(works: Works, d: int, p: Any, link: int, r: Resources, n: int) -> tuple[int, float]:
    # Take the flows of the users that `_gather` wrote, and write bytes/s over the link into the
    # phase; returns the next user, and when the row's next event is.
    step = works.step[d]
    p.rate = 0.0
    if p.done >= p.steps:
        p.demand = 0.0
        return n, p.at_s
    if step.works == 1 and step.grows == 0:
        flow = r.flow[n]
        p.limit_s = 0.0
        if flow < r.demand[n]:
            p.limit_s = r.demand[n] * p.base_s / max(flow, _STILL)
        for u in range(DRAWS):
            if r.on[n, u] == link:
                p.rate += flow * r.per[n, u]
        p.demand = p.rate
        return n + 1, p.at_s + remaining_s(p)
    if p.works <= 1:
        if step.uses >> link & 1 != 0 and p.base_s > 0.0:  # on average
            p.rate = p.link_bytes / p.base_s
        p.demand = p.rate
        return n, p.at_s + remaining_s(p)
    first_s = np.inf
    for w in range(step.works):
        work = works.work[d, w]
        if work.state != RUNS:
            continue
        seconds = work.alone_s + work.slope_s * p.done
        work.speed = r.flow[n] / r.demand[n] if r.demand[n] > 0.0 else 1.0
        work.end_s = work.at_s + work.left * seconds / work.speed if work.speed > 0.0 else np.inf
        first_s = min(first_s, work.end_s)
        for u in range(DRAWS):
            if r.on[n, u] == link:
                p.rate += r.flow[n] * r.per[n, u]
        n += 1
    p.demand = p.rate
    return n, first_s
