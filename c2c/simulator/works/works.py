"""Runs of equal steps."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np

from c2c.policies import inlined, jitable
from c2c.serving import RESOURCES
from c2c.serving.tables.plans import CACHED, GROWTH, PREFILL, ROWS, Plans
from c2c.simulator.works.phases import advance, remaining_s, stop_at_boundary
from c2c.simulator.works.resources import DRAWS

__all__ = [
    "DISK",
    "LINK",
    "ROUNDING",
    "RUNS",
    "STEP_DTYPE",
    "WORK_DTYPE",
    "Works",
    "begin_run",
    "bring_up",
    "end_run",
    "follow_run",
    "link_amount",
    "new_works",
    "stop_run",
    "walk",
    "write_plan",
]

LINK: Final = RESOURCES.index("link")
DISK: Final = RESOURCES.index("disk")

# The life of a work.
_WAITS: Final = 0
RUNS: Final = 1
_ENDED: Final = 2

# A work this close to its end, as a share of it, has ended.
ROUNDING: Final = 1e-9

STEP_DTYPE = np.dtype(
    [
        ("works", "i8"),
        ("uses", "i8"),  # bits of the resources
        ("others", "i8"),  # bits of those that other rows use
        ("inside", "i8"),  # 1: its own works may compete with one another, so they are walked
        ("grows", "i8"),  # 1: what a step takes of its resources grows over a run
        ("is_fresh", "i8"),  # 1: nothing of the step under way has been done
        ("order", "i8"),  # the lower, the longer the row has been busy
        ("variant", "i8"),  # of the last run, one more than its number; 0: there was none
        ("ended_s", "f8"),  # the last run
    ],
    align=True,
)
WORK_DTYPE = np.dtype(
    [
        ("alone_s", "f8"),  # of the first step
        ("slope_s", "f8"),  # more in each following one
        ("after", "i8"),  # bits of the works before it
        ("rank", "i8"),
        ("beside", "i8"),  # bit of the resource without whose use by others it takes no time; or 0
        ("state", "i8"),
        ("at_s", "f8"),  # `left` holds at this time; before it, nothing is done
        ("left", "f8"),  # share of the work still to do
        ("speed", "f8"),  # 1: as alone
        ("end_s", "f8"),  # on the longest path: in a step that begins at 0
    ],
    align=True,
)


class Works(NamedTuple):
    """Changing part, a row for each possible run."""

    step: Any  # STEP_DTYPE [rows]
    work: Any  # WORK_DTYPE [rows, works]
    on: Any  # i8[rows, works, DRAWS] resources, -1 for none
    amount: Any  # f8[rows, works, DRAWS] of them, the first step
    growth: Any  # f8[rows, works, DRAWS] more in each following one
    # f8[resources] by which flows over unlike resources compare: a link's byte counts 1, a second
    # of a device as many bytes as the link moves in it.
    unit: Any
    used: Any  # f8[chips, resources] that runs which have ended took
    begun: Any  # i8[1] times that a row began after it had nothing to do


def new_works(rows: int, works: int, chips: int, unit: Any) -> Works:
    """Return the table before the first event."""
    step = np.zeros(rows, STEP_DTYPE).view(np.recarray)
    step.ended_s = -1.0
    return Works(
        step=step,
        work=np.zeros((rows, works), WORK_DTYPE).view(np.recarray),
        on=np.full((rows, works, DRAWS), -1, np.int64),
        amount=np.zeros((rows, works, DRAWS)),
        growth=np.zeros((rows, works, DRAWS)),
        unit=np.asarray(unit, np.float64),
        used=np.zeros((chips, len(unit))),
        begun=np.zeros(1, np.int64),
    )


@inlined
def _cost(plans: Plans, p: int, w: int, column: int, prefill: int, rows: int, cached: int) -> float:
    bounds = plans.at[p, w, column]
    by_prefill = plans.cost[bounds[0, 0] + min(prefill, bounds[0, 1])]
    by_rows = plans.cost[bounds[1, 0] + min(rows, bounds[1, 1])]
    by_both = plans.cost[bounds[2, 0] + min(prefill + rows, bounds[2, 1])]
    return float(by_prefill + by_rows + by_both + plans.cached[p, w, column] * cached)


@inlined
def _size(split: Any, home: int, column: int) -> int:
    if home >= 0:
        return int(split[home, column])
    total = 0
    for h in range(split.shape[0]):
        total += split[h, column]
    return int(total)


@jitable
def write_plan(plans: Plans, works: Works, d: int, p: int, split: Any) -> None:
    """Write plan `p`'s works for a step into row `d`."""
    step = works.step[d]
    step.works = plans.count[p]
    step.inside = plans.inside[p]
    step.uses = 0
    step.grows = 0
    for w in range(plans.count[p]):
        work, home = works.work[d, w], plans.home[p, w]
        tokens, rows = _size(split, home, PREFILL), _size(split, home, ROWS)
        cached, grows = _size(split, home, CACHED), _size(split, home, GROWTH)
        work.after = plans.after[p, w]
        work.rank = plans.rank[p, w]
        work.beside = plans.beside[p, w]
        work.alone_s = _cost(plans, p, w, 0, tokens, rows, cached)
        work.slope_s = _cost(plans, p, w, 1, tokens, rows, 0) + plans.cached[p, w, 0] * grows
        u = 0
        for v in range(DRAWS):
            works.on[d, w, v] = -1
            if plans.on[p, w, v] >= 0:
                amount = _cost(plans, p, w, 2 + v, tokens, rows, cached)
                if amount > 0.0:
                    works.on[d, w, u] = plans.on[p, w, v]
                    works.amount[d, w, u] = amount
                    works.growth[d, w, u] = plans.cached[p, w, 2 + v] * grows
                    step.grows |= 1 if works.growth[d, w, u] > 0.0 else 0
                    step.uses |= 1 << plans.on[p, w, v]
                    u += 1
        if work.alone_s + work.slope_s > 0.0:
            step.uses |= work.beside


@jitable
def link_amount(works: Works, d: int, link: int) -> float:
    """Return row `d`'s first step's amount of `link`."""
    total = 0.0
    for w in range(works.step[d].works):
        for u in range(DRAWS):
            if works.on[d, w, u] == link:
                total += works.amount[d, w, u]
    return float(total)


@inlined
def _alone_s(work: Any, j: int) -> float:
    # Seconds in step j of a run whose resources nobody else uses.
    return 0.0 if work.beside != 0 else float(work.alone_s + work.slope_s * j)


@inlined
def _path_s(works: Works, d: int, j: int) -> float:
    # The longest path of step j; notes when each work ends on it.
    longest = 0.0
    for w in range(works.step[d].works):
        work = works.work[d, w]
        begins = 0.0
        for v in range(w):
            if (work.after >> v) & 1 != 0:
                begins = max(begins, works.work[d, v].end_s)
        work.end_s = begins + _alone_s(work, j)
        longest = max(longest, work.end_s)
    return longest


@jitable
def _line(works: Works, d: int, steps: int) -> tuple[int, float, float]:
    # How many steps from the first on have lengths on one line; its base and slope.
    base_s = _path_s(works, d, 0)
    last, slope_s = steps - 1, 0.0
    while last > 0:
        slope_s = (_path_s(works, d, last) - base_s) / last
        half = last // 2  # lengths are convex: on a line if the middle one is
        if half == 0 or _path_s(works, d, half) >= (base_s + slope_s * half) * (1.0 - 1e-12):
            break
        last = half
    return last + 1, base_s, slope_s if last > 0 else 0.0


# A run is one closed form (`phases`) in two cases: its step is one work, which follows any share of
# its resources; or no other run uses its resources, so that a step takes the graph's longest path.
# Else the works are walked one by one: each begins when its predecessors have ended, and takes
# longer while its resources do not meet its demand.
@jitable
def begin_run(works: Works, d: int, p: Any, now_s: float, stands_s: float, is_old: bool) -> None:
    """Begin `p.steps` steps of row `d`, while its longest path stays."""
    step = works.step[d]
    if not (is_old and step.ended_s >= now_s):
        works.begun[0] += 1
        step.order = works.begun[0]
    p.works = 1 if step.works > 0 else 0
    p.steps, p.base_s, p.slope_s = _line(works, d, p.steps)
    p.done = 0
    p.part = 0.0
    p.limit_s = 0.0
    p.at_s = now_s + stands_s
    if step.works > 1 and (step.inside != 0 or p.is_load != 0):
        walk(works, d, p)


@jitable
def walk(works: Works, d: int, p: Any) -> None:
    """Walk row `d`'s works from the state of the closed form."""
    _path_s(works, d, p.done)
    passed = p.part * (p.base_s + p.slope_s * p.done)
    works.step[d].is_fresh = 1 if p.part <= 0.0 else 0
    p.part = 0.0
    for w in range(works.step[d].works):
        work = works.work[d, w]
        seconds = _alone_s(work, p.done)
        work.state = _WAITS
        if passed > 0.0 and work.end_s <= passed:
            work.state = _ENDED
        elif passed > 0.0 and work.end_s - seconds <= passed:
            share = (work.end_s - passed) / seconds
            _start(work, p.at_s)
            work.left = share
    _go_on(works, d, p, p.at_s)


@inlined
def _start(work: Any, at_s: float) -> None:
    work.state = RUNS
    work.at_s = at_s
    work.left = 1.0
    work.speed = 0.0
    work.end_s = np.inf


@inlined
def _go_on(works: Works, d: int, p: Any, at_s: float) -> None:
    # Begin each work that waits for none, of the next step where this one is over.
    _begin_ready(works, d, p, at_s)
    while p.works <= 1 and p.done < p.steps:
        p.done += 1
        if p.done < p.steps:
            works.step[d].is_fresh = 1
            for w in range(works.step[d].works):
                works.work[d, w].state = _WAITS
            _begin_ready(works, d, p, at_s)


@inlined
def _begin_ready(works: Works, d: int, p: Any, at_s: float) -> None:
    # A work without seconds ends at once.
    p.works = 1
    for w in range(works.step[d].works):
        work = works.work[d, w]
        if work.state == _WAITS:
            must_wait = False
            for v in range(w):
                if (work.after >> v) & 1 != 0 and works.work[d, v].state != _ENDED:
                    must_wait = True
            if not must_wait:
                _start(work, at_s)
                is_idle = work.beside != 0 and works.step[d].others & work.beside == 0
                if is_idle or work.alone_s + work.slope_s * p.done <= 0.0:
                    work.state = _ENDED
        p.works += 1 if work.state != _ENDED else 0


@inlined
def _bring(work: Any, seconds: float, now_s: float) -> None:
    passed = (now_s - work.at_s) * work.speed
    if passed > 0.0:
        share = work.left - passed / seconds
        work.left = share if share > ROUNDING else 0.0  # it ends now, whoever else asks
    work.at_s = max(work.at_s, now_s)


@inlined
def bring_up(works: Works, d: int, p: Any, now_s: float) -> None:
    """Advance the walked works of row `d` to now."""
    step = works.step[d]
    for w in range(step.works):
        work = works.work[d, w]
        if work.state == RUNS:
            _bring(work, work.alone_s + work.slope_s * p.done, now_s)
            p.at_s = work.at_s
            if work.left < 1.0:
                step.is_fresh = 0


@jitable
def follow_run(works: Works, d: int, p: Any, now_s: float) -> bool:
    """Handle the end of a work of row `d`; False: the run has ended."""
    if p.works <= 1:
        return False
    works.step[d].is_fresh = 0
    for w in range(works.step[d].works):
        work = works.work[d, w]
        if work.state == RUNS and work.end_s <= now_s:
            work.state = _ENDED
    p.at_s = now_s
    _go_on(works, d, p, now_s)
    return bool(p.done < p.steps)


@jitable
def stop_run(works: Works, d: int, p: Any, ends_s: float, now_s: float) -> float:
    """End a run at its step boundary; return the row's next event."""
    if p.works <= 1:
        stop_at_boundary(p, now_s)
        return float(p.at_s + remaining_s(p))
    bring_up(works, d, p, now_s)
    p.steps = min(p.steps, max(1, p.done + 1 - works.step[d].is_fresh))
    if p.done < p.steps:
        return ends_s
    p.works = 1
    return now_s


@jitable
def end_run(works: Works, c: int, d: int, p: Any, is_whole: bool, now_s: float) -> None:
    """End the run of row `d` on chip `c`, maybe early, and account it."""
    step = works.step[d]
    steps = float(p.steps)
    if not is_whole:
        if p.works <= 1:
            advance(p, now_s)
            steps = p.done + p.part
        else:
            steps = float(p.done)
    for w in range(step.works):
        work = works.work[d, w]
        share = steps
        if not is_whole and p.works > 1 and work.state != _WAITS:
            if work.state == RUNS:
                _bring(work, work.alone_s + work.slope_s * p.done, now_s)
            share += 1.0 if work.state == _ENDED else 1.0 - work.left
        whole = float(int(share))
        for u in range(DRAWS):
            if works.on[d, w, u] >= 0:
                taken = share * works.amount[d, w, u]
                taken += works.growth[d, w, u] * whole * (share - 0.5 * (whole + 1.0))
                works.used[c, works.on[d, w, u]] += taken
    step.ended_s = now_s
    p.works = 0
