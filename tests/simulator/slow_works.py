"""A slow interpreter of plans: every work of every step is walked, nothing is a closed form."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any

from c2c.serving.tables.plans import Cost, Work

__all__ = ["Job", "amount_of", "ended_s"]

_NOW = 1e-12  # a share of a work or a second that is rounding


@dataclass(slots=True)
class Job:
    """A run of steps of a plan on a row, not before `at_s` nor before the row's last job."""

    row: int
    plan: int
    at_s: float
    steps: int
    rows: int = 0
    cached: int = 0
    growth: int = 0
    step: int = -1
    order: int = 0
    ended_s: float = inf
    left: dict[str, float] = field(default_factory=dict)  # of works under way
    ended: set[str] = field(default_factory=set)


def amount_of(amount: Any, rows: int, home: int | None = None, cached: int = 0) -> float:
    """Return an amount of a work of a home, of two that halve the rows; the first has the cache."""
    mine = rows if home is None else (rows + 1 - home) // 2
    if not isinstance(amount, Cost):
        return float(amount)
    return float(amount.decode.at(mine)) + amount.cached * (0 if home == 1 else cached)


def ended_s(
    plans: Sequence[Sequence[Work]], capacity: Mapping[str, float], jobs: Sequence[Job],
    *, by_age: bool,
) -> list[float]:  # fmt: skip
    """Return when each job ends; the jobs of a row run in the order in which they are given."""
    now, begun = 0.0, 0
    idle_s: dict[int, float] = {}
    order: dict[int, int] = {}
    while any(job.ended_s == inf for job in jobs):
        ready = _next_jobs(jobs)
        for job in ready:
            if job.at_s <= now:
                if idle_s.get(job.row, -1.0) < now:
                    begun += 1
                    order[job.row] = begun
                job.order = order[job.row]
                _begin_works(job, plans, ready, jobs, now)
        running = [
            (job, work)
            for job in jobs
            for work in plans[job.plan]
            if job.ended_s == inf and work.name in job.left
        ]
        speeds = _speeds(running, capacity, by_age)
        next_s = min((job.at_s for job in _next_jobs(jobs) if job.at_s > now), default=inf)
        for (job, work), speed in zip(running, speeds, strict=True):
            if speed > 0.0:
                next_s = min(next_s, now + job.left[work.name] * _seconds(job, work) / speed)
        for (job, work), speed in zip(running, speeds, strict=True):
            done = (next_s - now) * speed / _seconds(job, work)
            job.left[work.name] = max(0.0, job.left[work.name] - done)
        now = next_s
        for job in {id(job): job for job, _ in running}.values():
            for name in [name for name, left in job.left.items() if left <= _NOW]:
                del job.left[name]
                job.ended.add(name)
            _begin_works(job, plans, _next_jobs(jobs), jobs, now)
            if job.step >= job.steps:
                job.ended_s = idle_s[job.row] = now
    return [job.ended_s for job in jobs]


def _next_jobs(jobs: Sequence[Job]) -> list[Job]:
    first: dict[int, Job] = {}
    for job in jobs:
        if job.ended_s == inf:
            first.setdefault(job.row, job)
    return [job for job in first.values() if job.step < 0]


def _seconds(job: Job, work: Work) -> float:
    of = amount_of(work.seconds, job.rows, work.home, job.cached + job.step * job.growth)
    return of + job.step * amount_of(work.growth, job.rows, work.home)


def _others(
    job: Job, plans: Sequence[Sequence[Work]], ready: Sequence[Job], jobs: Sequence[Job], now: float
) -> set[str]:
    """Return the resources that jobs under way on other rows use."""
    begun = [other for other in jobs if other.step >= 0 and other.ended_s == inf]
    begun += [other for other in ready if other.at_s <= now]
    return {
        name
        for other in begun
        if other.row != job.row
        for work in plans[other.plan]
        if amount_of(work.seconds, other.rows) > 0.0
        for name in {*work.draws, work.beside or ""}
    }


def _begin_works(
    job: Job, plans: Sequence[Sequence[Work]], ready: Sequence[Job], jobs: Sequence[Job], now: float
) -> None:
    plan = plans[job.plan]
    while job.step < job.steps:
        if job.step >= 0:
            for work in plan:
                waits = work.name not in job.left and work.name not in job.ended
                if waits and set(work.after) <= job.ended:
                    is_idle = work.beside is not None and work.beside not in _others(
                        job, plans, ready, jobs, now
                    )
                    if _seconds(job, work) > 0.0 and not is_idle:
                        job.left[work.name] = 1.0
                    else:
                        job.ended.add(work.name)
            if job.left:
                return
        job.step += 1
        job.ended.clear()


def _speeds(
    running: Sequence[tuple[Job, Work]], capacity: Mapping[str, float], by_age: bool
) -> list[float]:
    """Raise all flows of a rank together until each is met or one of its resources is full."""
    left = dict(capacity)
    link = next(iter(capacity.values()))
    speeds = [1.0] * len(running)
    ranks, flows, takes = [], [], []
    for job, work in running:
        cached = job.cached + job.step * job.growth
        draws = {k: amount_of(v, job.rows, work.home, cached) for k, v in work.draws.items()}
        draws = {k: v for k, v in draws.items() if v > 0.0}
        name = next(iter(draws), None)
        first = 0.0 if name is None else draws[name] * (link if capacity[name] == 1.0 else 1.0)
        ranks.append((work.rank, -job.order if by_age else 0))
        flows.append(first / _seconds(job, work))
        takes.append({k: v / first for k, v in draws.items()})
    for rank in sorted(set(ranks), reverse=True):
        level = 0.0
        rising = {i for i in range(len(running)) if ranks[i] == rank and takes[i]}
        while rising:
            weight = {k: sum(takes[i].get(k, 0.0) for i in rising) for k in left}
            rises = {k: left[k] / w for k, w in weight.items() if w > 0.0}
            rise = min(*(flows[i] - level for i in rising), *rises.values())
            level += rise
            full = {k for k, most in rises.items() if most <= rise}
            left = {k: 0.0 if k in full else left[k] - rise * weight[k] for k in left}
            for i in list(rising):
                if full & takes[i].keys() or (not full and flows[i] <= level):
                    speeds[i] = min(1.0, level / flows[i])
                    rising.discard(i)
    return speeds
