"""Choice of an instance for a request (C2CServe section 6.1, step 1)."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from c2c.compiling.decision import decision
from c2c.policies.returns import A_ROUTE
from c2c.policies.traits import RouteTraits

__all__ = [
    "ROUTE_DTYPE",
    "EndsFirst",
    "LeastOutstanding",
    "TogetherAtFirst",
    "WhereWorkIs",
    "route",
]

# A row for each active instance of the requested model.
ROUTE_DTYPE = np.dtype(
    [
        ("instance", "i8"),
        ("outstanding", "i8"),  # waiting and running requests
        ("draining", "i8"),  # 1: accepts no requests
        ("kv_capacity", "i8"),  # tokens
        ("load_s", "f8"),  # a decode step of every busy engine of the slice, and their backlogs
        ("alpha", "f8"),  # alpha of its last step
        ("ends_s", "f8"),  # the request here, after earlier prompts; if the trait asks for it
    ],
    align=True,
)


@decision(returns=A_ROUTE, rows=ROUTE_DTYPE)
def route(policy: Any, own: Any, table: Any, count: int, tokens: int) -> int:
    """Return a request's instance's row, or -1: place the model.

    Args:
      table: `ROUTE_DTYPE`; the first `count` rows are valid.
      tokens: prompt and output.
    """


class LeastOutstanding(NamedTuple):
    """The instance with the fewest outstanding requests, of equals the first.

    Source: C2CServe section 6.1 step 1; the measure is ours.
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
    """The instance with work for the model, on the least loaded slice (ours)."""


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


class EndsFirst(NamedTuple):
    """The instance that would end the request first (ours)."""

    @property
    def traits(self) -> RouteTraits:
        """Constant traits of this policy."""
        return RouteTraits(reads_end_times=True)


@route.by(EndsFirst)
def _ends_first(policy: EndsFirst, own: Any, table: Any, count: int, tokens: int) -> int:
    best = -1
    for row in range(count):
        if table[row].draining != 0 or table[row].kv_capacity < tokens:
            continue
        if best < 0 or table[row].ends_s < table[best].ends_s:
            best = row
    return best


class TogetherAtFirst(NamedTuple):
    """One batch with the first variant (alpha 0), else the least outstanding instance.

    Source: Tessera, whose latency policy pipelines nothing.
    """


@route.by(TogetherAtFirst)
def _together_at_first(
    policy: TogetherAtFirst, own: Any, table: Any, count: int, tokens: int
) -> int:  # fmt: skip
    best, spreads = -1, False
    for row in range(count):
        spreads = spreads or (table[row].outstanding > 0 and table[row].alpha > 0.0)
    for row in range(count):
        if table[row].draining != 0 or table[row].kv_capacity < tokens:
            continue
        if best < 0:
            best = row
            continue
        more = table[row].outstanding - table[best].outstanding
        if more < 0 if spreads else more > 0:
            best = row
    return best
