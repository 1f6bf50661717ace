"""Which active instance of a model takes a request (C2CServe section 6.1, step 1)."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from c2c.policies.decision import decision
from c2c.policies.returns import A_ROUTE

__all__ = ["ROUTE_DTYPE", "LeastOutstanding", "WhereWorkIs", "route"]

# One row an active instance of the requested model.
ROUTE_DTYPE = np.dtype(
    [
        ("instance", "i8"),
        ("outstanding", "i8"),  # requests that wait at it or run
        ("draining", "i8"),  # 1: takes nothing new
        ("kv_capacity", "i8"),  # tokens
        ("load_s", "f8"),  # of its slice: a decode step of every busy engine and their backlogs
    ],
    align=True,
)


@decision(returns=A_ROUTE, rows=ROUTE_DTYPE)
def route(policy: Any, own: Any, table: Any, count: int, tokens: int) -> int:
    """Return the row of the instance that takes a request, or -1: place the model.

    Args:
      policy: decides.
      own: arrays of the policy's own.
      table: record array of `ROUTE_DTYPE`; the first `count` rows are valid.
      count: number of active instances of the model.
      tokens: prompt plus output tokens that must fit the instance's KV capacity.
    """


class LeastOutstanding(NamedTuple):
    """The instance with the fewest outstanding requests.

    Source: C2CServe section 6.1 step 1. Ours: least outstanding where a model has several
    instances, ties to the first row; instances that are being drained take nothing new.
    """


@route.by(LeastOutstanding)
def _least_outstanding(
    policy: LeastOutstanding, own: Any, table: Any, count: int, tokens: int
) -> int:  # fmt: skip
    best = -1
    for row in range(count):
        if table[row].draining != 0 or table[row].kv_capacity < tokens:
            continue
        if best < 0 or table[row].outstanding < table[best].outstanding:
            best = row
    return best


class WhereWorkIs(NamedTuple):
    """The instance that has work for the model already, on the least loaded slice.

    Ours, for several engines a slice: requests of one model share each pass over its weights, and
    an engine without work binds nothing, since making it run elsewhere costs next to nothing.
    """


@route.by(WhereWorkIs)
def _where_work_is(
    policy: WhereWorkIs, own: Any, table: Any, count: int, tokens: int
) -> int:  # fmt: skip
    best = -1
    for row in range(count):
        r = table[row]
        if r.draining != 0 or r.kv_capacity < tokens or r.outstanding == 0:
            continue
        if best < 0 or r.load_s < table[best].load_s:
            best = row
    return best
