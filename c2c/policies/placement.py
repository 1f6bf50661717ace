"""Which slice an inactive model is placed on (C2CServe section 6.2) and which model gives way."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numba.extending import register_jitable

__all__ = [
    "CANDIDATE_DTYPE",
    "PLACEMENTS",
    "choose_victim",
    "link_demand_gbps",
    "place",
    "place_bandwidth_aware",
    "place_first_idle",
    "place_random",
    "should_drain",
]

# One row a slice that has no work now: free, or holding an inactive model that may be evicted.
CANDIDATE_DTYPE = np.dtype(
    [
        ("instance", "i8"),
        ("is_free", "i8"),  # 1: no model loaded
        ("last_used_s", "f8"),
        ("kv_capacity", "i8"),  # tokens of the model to place
        ("link_left_gbps", "f8"),  # the chip's link budget not reserved by busy instances
        ("unpromised_gbps", "f8"),  # the same, less what inactive models on the chip would need
    ],
    align=True,
)

BANDWIDTH_AWARE: Final = 0
RANDOM: Final = 1
FIRST_IDLE: Final = 2
PLACEMENTS: Final = {"bandwidth_aware": BANDWIDTH_AWARE, "random": RANDOM, "first_idle": FIRST_IDLE}


def link_demand_gbps(streamed_bytes: float, tpot_slo_s: float) -> float:
    """Return S_m / TPOT_m, the link rate a model needs to meet its decode target, in 1e9 bytes/s.

    Source: C2CServe section 6.2. Ours: S_m counts the bytes one decode step streams, so for an
    MoE model the experts expected to be active rather than all of them.
    """
    return streamed_bytes / tpot_slo_s / 1e9


@register_jitable
def place_bandwidth_aware(table: Any, count: int, tokens: int, demand_gbps: float) -> int:
    """Return the row to place on, or -1: the KV cache and the summed link demand must fit.

    Free slices come before evictions, then the chip with most budget left if its inactive models
    were active too (they may be soon), then the model unused for longest; remaining ties go to
    the first row.

    Source: C2CServe section 6.2 (sum of S_m/TPOT_m within the link) and 6.1 step 2; the order
    among admissible slices is ours.
    """
    best = -1
    for row in range(count):
        c = table[row]
        if c.kv_capacity < tokens or c.link_left_gbps < demand_gbps:
            continue
        if best < 0:
            best = row
            continue
        b = table[best]
        if c.is_free != b.is_free:
            if c.is_free > b.is_free:
                best = row
        elif c.unpromised_gbps != b.unpromised_gbps:
            if c.unpromised_gbps > b.unpromised_gbps:
                best = row
        elif c.last_used_s < b.last_used_s:
            best = row
    return best


@register_jitable
def place_first_idle(table: Any, count: int, tokens: int) -> int:
    """Return a free slice, else the one unused for longest, ignoring the link; -1 if none fits.

    The locality part of a locality-aware scheduler is upstream: only chips that hold the
    model's checkpoint in host memory offer candidates. Source: ServerlessLLM, its startup-time
    scheduler with all checkpoints in the same tier.
    """
    best = -1
    for row in range(count):
        c = table[row]
        if c.kv_capacity < tokens:
            continue
        if best < 0:
            best = row
            continue
        b = table[best]
        if c.is_free > b.is_free or (c.is_free == b.is_free and c.last_used_s < b.last_used_s):
            best = row
    return best


@register_jitable
def place_random(table: Any, count: int, tokens: int, key: int) -> int:
    """Return a uniformly drawn row among those whose KV cache fits, or -1.

    Args:
      key: a non-negative integer below 2**31; the draw is a pure function of it.

    Source: C2CServe section 9.4.2 (the ablation; its candidate set is not given).
    """
    fitting = 0
    for row in range(count):
        if table[row].kv_capacity >= tokens:
            fitting += 1
    if fitting == 0:
        return -1
    # Three rounds of the minimal standard generator: products stay below 2**47, so compiled and
    # interpreted arithmetic agree.
    x = key % 2147483646 + 1
    for _ in range(3):
        x = x * 48271 % 2147483647
    pick = x % fitting
    for row in range(count):
        if table[row].kv_capacity >= tokens:
            if pick == 0:
                return row
            pick -= 1
    return -1


@register_jitable
def place(policy: int, table: Any, count: int, tokens: int, demand_gbps: float, key: int) -> int:
    """Return the row chosen by the named policy (`PLACEMENTS`), or -1."""
    if policy == BANDWIDTH_AWARE:
        return place_bandwidth_aware(table, count, tokens, demand_gbps)
    if policy == RANDOM:
        return place_random(table, count, tokens, key)
    return place_first_idle(table, count, tokens)


@register_jitable
def choose_victim(last_used_s: Any, is_inactive: Any, count: int) -> int:
    """Return the inactive instance unused for longest (ties to the first), or -1.

    Source: C2CServe section 6.1 step 2, which leaves the victim order open; ours is LRU.
    """
    best = -1
    for row in range(count):
        if is_inactive[row] and (best < 0 or last_used_s[row] < last_used_s[best]):
            best = row
    return best


@register_jitable
def should_drain(oldest_wait_s: float, drain_after_s: float) -> bool:
    """Return whether a model waited so long for a slice that a busy one must be drained for it.

    Ours: the paper evicts "inactive or low-priority" instances and leaves busy slices open;
    without this rule a steady stream to the loaded models starves the others.
    """
    return oldest_wait_s > drain_after_s
