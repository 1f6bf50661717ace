"""Max-min fair shares of several resources."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from c2c.policies import jitable
from c2c.serving import DRAWS

__all__ = ["DRAWS", "Resources", "new_resources", "share"]


class Resources(NamedTuple):
    """Capacities, demands and shares."""

    capacity: Any  # f8[resources] units/s
    on: Any  # i8[users, DRAWS] resources used, -1 for none
    per: Any  # f8[users, DRAWS] units of that resource for one unit of flow
    demand: Any  # f8[users] flow with all resources to itself, units/s
    rank: Any  # i8[users] the higher, the sooner served
    flow: Any  # f8[users] what each gets
    left: Any  # f8[resources] scratch
    weight: Any


def new_resources(users: int, resources: int) -> Resources:
    """Return empty tables for so many users and resources."""
    return Resources(
        capacity=np.zeros(resources),
        on=np.full((users, DRAWS), -1, np.int64),
        per=np.zeros((users, DRAWS)),
        demand=np.zeros(users),
        rank=np.zeros(users, np.int64),
        flow=np.zeros(users),
        left=np.zeros(resources),
        weight=np.zeros(resources),
    )


@jitable
def share(r: Resources, n: int) -> None:
    """Write the flows of the first `n` users, max-min fair rank by rank, highest first."""
    for k in range(len(r.left)):
        r.left[k] = r.capacity[k]
    for i in range(n):
        r.flow[i] = -1.0
    settled = 0
    while settled < n:
        rank = -(1 << 60)
        for i in range(n):
            if r.flow[i] < 0.0:
                rank = max(rank, r.rank[i])
        settled += _fill(r, n, rank)


@jitable
def _fill(r: Resources, n: int, rank: int) -> int:
    # Serve one rank; returns how many users it has.
    users = 0
    for i in range(n):
        if r.flow[i] < 0.0 and r.rank[i] == rank:
            users += 1
    level = 0.0
    waiting = users
    while waiting > 0:
        rise = _weigh(r, n, rank, level)
        full = -1
        for k in range(len(r.weight)):
            if r.weight[k] > 0.0 and r.left[k] / r.weight[k] < rise:
                rise = r.left[k] / r.weight[k]
                full = k
        level += rise
        for k in range(len(r.weight)):
            r.left[k] = 0.0 if k == full else max(r.left[k] - rise * r.weight[k], 0.0)
        for i in range(n):
            if r.flow[i] < 0.0 and r.rank[i] == rank and _stops(r, i, full, level):
                r.flow[i] = min(level, r.demand[i])
                waiting -= 1
    return users


@jitable
def _weigh(r: Resources, n: int, rank: int, level: float) -> float:
    # What one unit more for all unsettled of a rank takes; returns how far the nearest demand is.
    rise = np.inf
    for k in range(len(r.weight)):
        r.weight[k] = 0.0
    for i in range(n):
        if r.flow[i] < 0.0 and r.rank[i] == rank:
            rise = min(rise, r.demand[i] - level)
            for u in range(DRAWS):
                if r.on[i, u] >= 0:
                    r.weight[r.on[i, u]] += r.per[i, u]
    return float(rise)


@jitable
def _stops(r: Resources, i: int, full: int, level: float) -> bool:
    # Whether its demand is met, or the resource that has just become full is one of its own.
    if full < 0:
        return bool(r.demand[i] <= level)
    stops = False
    for u in range(DRAWS):
        stops = stops or (r.on[i, u] == full and r.per[i, u] > 0.0)
    return bool(stops)
