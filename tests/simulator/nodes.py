"""A node whose rows run plans at given times: the table of works without the serving loop."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from c2c.policies import jitable
from c2c.serving.tables.plans import CACHED, GROWTH, PREFILL, ROWS, Plans, Work, plan_tables
from c2c.simulator.works.phases import PHASE_DTYPE
from c2c.simulator.works.resources import Resources, new_resources
from c2c.simulator.works.sharing import share_rows
from c2c.simulator.works.works import Works, begin_run, end_run, follow_run, new_works, write_plan

JOB_DTYPE = np.dtype(
    [
        ("row", "i8"),
        ("at_s", "f8"),  # not before, and not before the row's last job has ended
        ("plan", "i8"),  # -1: one work on the link alone, without the table
        ("prefill", "i8"),
        ("rows", "i8"),  # the first of two homes has half of them, rounded up
        ("cached", "i8"),  # tokens, all at the first
        ("growth", "i8"),
        ("steps", "i8"),
        ("is_load", "i8"),
        ("base_s", "f8"),
        ("slope_s", "f8"),
        ("link_bytes", "f8"),
        ("begun_s", "f8"),
        ("ended_s", "f8"),
        ("done", "i8"),
        ("first", "i8"),  # steps that have been done before
    ],
    align=True,
)


class Node(NamedTuple):
    plans: Plans
    phase: Any
    busy: Any
    end_s: Any
    works: Works
    r: Resources
    split: Any  # i8[2, 4] scratch
    events: Any  # i8[1]
    walks: Any  # i8[1] 1: no run is folded


def node(
    plans: Sequence[Sequence[Work]], resources: dict[str, float], rows: int, *, walks: bool = False
) -> Node:
    """Return a node.

    Args:
      resources: what each carries a second; the first one is the link, devices carry 1.
      walks: every work is walked, no run is folded.
    """
    made = plan_tables(plans, list(resources), 256)
    most = max(1, made.after.shape[1])
    capacity = np.array(list(resources.values()))
    r = new_resources(rows * most, len(capacity))
    r.capacity[:] = capacity
    unit = np.where(capacity == 1.0, capacity[0], 1.0)
    return Node(
        plans=made, phase=np.zeros(rows, PHASE_DTYPE).view(np.recarray),
        busy=np.zeros(rows, np.int64), end_s=np.full(rows, np.inf),
        works=new_works(rows, most, 1, unit), r=r, split=np.zeros((2, 4), np.int64),
        events=np.zeros(1, np.int64), walks=np.array([int(walks)]),
    )  # fmt: skip


def jobs(rows: Sequence[dict[str, Any]]) -> Any:
    result = np.zeros(len(rows), JOB_DTYPE).view(np.recarray)
    result.plan, result.steps = -1, 1
    for k, row in enumerate(rows):
        for name, value in row.items():
            result[k][name] = value
    return result


@jitable
def begin_job(n: Node, job: Any, now_s: float) -> None:
    d = job.row
    p = n.phase[d]
    n.busy[d] = 1
    if job.first == 0:
        job.begun_s = now_s
    p.is_load = job.is_load
    p.steps = job.steps
    if job.plan >= 0:
        n.split[0, PREFILL] = job.prefill
        n.split[0, ROWS], n.split[1, ROWS] = (job.rows + 1) // 2, job.rows // 2
        n.split[0, CACHED], n.split[0, GROWTH] = job.cached, job.growth
        write_plan(n.plans, n.works, d, job.plan, n.split)
        for w in range(n.works.step[d].works):
            n.works.work[d, w].alone_s += n.works.work[d, w].slope_s * job.first
            n.works.amount[d, w] += n.works.growth[d, w] * job.first
        if n.walks[0] != 0:
            n.works.step[d].inside = 1
        begin_run(n.works, d, p, now_s, 0.0, True)
        return
    p.works = 0
    p.base_s = job.base_s
    p.slope_s = job.slope_s
    p.link_bytes = job.link_bytes
    p.demand = job.link_bytes / job.base_s
    p.limit_s = 0.0
    p.done = 0
    p.part = 0.0
    p.at_s = now_s


@jitable
def run_jobs(n: Node, job: Any, by_age: bool) -> float:
    """Run the jobs of each row one after another; returns when the last one ends."""
    left = len(job)
    under_way = np.full(len(n.busy), -1)
    now_s = 0.0
    while left > 0:
        changed = False
        for k in range(len(job)):
            d = job[k].row
            if job[k].done == 0 and n.busy[d] == 0 and job[k].at_s <= now_s:
                job[k].done = 1
                under_way[d] = k
                begin_job(n, job[k], now_s)
                changed = True
        if changed:
            share_rows(n.works, n.phase, n.busy, n.end_s, 0, len(n.busy), 0, 0, by_age, now_s, n.r)
        d, at_s = -1, np.inf
        for i in range(len(n.busy)):
            if n.busy[i] != 0 and n.end_s[i] < at_s:
                d, at_s = i, n.end_s[i]
        for k in range(len(job)):
            if job[k].done == 0 and n.busy[job[k].row] == 0 and job[k].at_s < at_s:
                d, at_s = -1, job[k].at_s
        now_s = at_s
        if d < 0:
            continue
        n.events[0] += 1
        if n.phase[d].works != 0 and follow_run(n.works, d, n.phase[d], now_s):
            share_rows(n.works, n.phase, n.busy, n.end_s, 0, len(n.busy), 0, 0, by_age, now_s, n.r)
            continue
        k = under_way[d]
        job[k].ended_s = now_s
        if n.phase[d].works != 0:
            end_run(n.works, 0, d, n.phase[d], True, now_s)
        n.busy[d] = 0
        n.end_s[d] = np.inf
        job[k].steps -= n.phase[d].steps
        left -= 1
        if job[k].steps > 0:  # another path has become the longest
            job[k].done = 0
            job[k].first += n.phase[d].steps
            left += 1
        share_rows(n.works, n.phase, n.busy, n.end_s, 0, len(n.busy), 0, 0, by_age, now_s, n.r)
    return now_s
