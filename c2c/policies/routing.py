"""Which active instance of a model takes a request (C2CServe section 6.1, step 1)."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba.extending import register_jitable

__all__ = ["ROUTE_DTYPE", "route_least_outstanding", "wants_another_instance"]

# One row an active instance of the requested model.
ROUTE_DTYPE = np.dtype(
    [("instance", "i8"), ("outstanding", "i8"), ("draining", "i8"), ("kv_capacity", "i8")],
    align=True,
)


@register_jitable
def route_least_outstanding(table: Any, count: int, tokens: int) -> int:
    """Return the row with the fewest outstanding requests, or -1 if none may take the request.

    Args:
      table: record array of `ROUTE_DTYPE`; the first `count` rows are valid.
      count: number of active instances of the model.
      tokens: prompt plus output tokens that must fit the instance's KV capacity.

    Source: C2CServe section 6.1 step 1. Ours: least outstanding where a model has several
    instances, ties to the first row; instances that are being drained take nothing new.
    """
    best = -1
    for row in range(count):
        if table[row].draining != 0 or table[row].kv_capacity < tokens:
            continue
        if best < 0 or table[row].outstanding < table[best].outstanding:
            best = row
    return best


@register_jitable
def wants_another_instance(outstanding: int, threshold: int) -> bool:
    """Return whether a model this busy should be placed once more (0 switches this off).

    Ours: the paper keeps one active instance a model; a threshold lets a hot model spread over
    idle slices.
    """
    return threshold > 0 and outstanding >= threshold
