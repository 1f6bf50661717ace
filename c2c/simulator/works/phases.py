"""Progress of a phase by the link share."""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np

from c2c.policies import inlined, jitable

__all__ = ["PHASE_DTYPE", "advance", "remaining_s", "span_s", "stop_at_boundary"]

PHASE_DTYPE = np.dtype(
    [
        # what changes or is read whenever shares change comes first: few cache lines
        ("demand", "f8"),  # bytes/s with the link to itself
        ("rate", "f8"),  # bytes/s granted
        ("limit_s", "f8"),  # seconds a step that the link share imposes
        ("link_bytes", "f8"),  # a step
        ("at_s", "f8"),  # progress below holds at this time; before it, none is made
        ("done", "i8"),  # whole steps done
        ("part", "f8"),  # share of the next step done, in [0, 1)
        ("steps", "i8"),
        ("base_s", "f8"),
        ("slope_s", "f8"),
        ("is_load", "i8"),
        ("works", "i8"),  # 0: one on the link alone; else see `c2c.simulator.works.works`
        ("start_s", "f8"),
        ("hbm_bytes", "f8"),  # the first step
        ("hbm_growth", "f8"),
        ("lead_link", "f8"),  # bytes before the first step, at a rate that nobody shares
        ("lead_hbm", "f8"),
        ("ahead", "f8"),  # bytes of it that have come before the phase began
        ("turned_s", "f8"),  # when its device last turned to another engine
        ("moved_at_start", "f8"),  # the chip's link bytes when the phase began
        # totals over all phases of the instance
        ("busy_s", "f8"),
        ("load_s", "f8"),
        ("total_link", "f8"),
        ("total_hbm", "f8"),
        ("total_kv_in", "f8"),  # KV caches that came from host memory
        ("total_kv_out", "f8"),
        ("total_runs", "i8"),  # phases of steps; more steps than runs were not walked one by one
        ("total_steps", "i8"),
        ("total_prefill", "i8"),
        ("total_decode", "i8"),
    ],
    align=True,
)

# A progress this close to a step boundary is on it: rounding of one division.
_ON_BOUNDARY: Final = 1e-9


# Step j takes max(base + slope*j, limit) seconds: `base + slope*j` with the link to itself (the KV
# cache grows by the same number of tokens every step), `limit` what its bytes need at the present
# share.
@inlined
def span_s(base_s: float, slope_s: float, limit_s: float, first: int, count: int) -> float:
    """Return the seconds of steps first .. first+count-1: the sum of max(base+slope*j, limit)."""
    if count <= 0:
        return 0.0
    limited = 0
    if base_s + slope_s * first < limit_s:
        if slope_s <= 0.0:
            limited = count
        else:
            limited = min(count, math.ceil((limit_s - base_s) / slope_s) - first)
            limited = max(limited, 0)
    rest = count - limited
    total = limited * limit_s
    if rest > 0:
        start = first + limited
        total += rest * base_s + slope_s * (start * rest + rest * (rest - 1) / 2.0)
    return total


@inlined
def _step_s(p: Any, j: int) -> float:
    return float(max(p.base_s + p.slope_s * j, p.limit_s))


@inlined
def remaining_s(p: Any) -> float:
    """Return the seconds from `p.at_s` to the phase's end at the present share."""
    if p.done >= p.steps:
        return 0.0
    rest = span_s(p.base_s, p.slope_s, p.limit_s, p.done + 1, p.steps - p.done - 1)
    return float((1.0 - p.part) * _step_s(p, p.done) + rest)


@jitable
def _steps_within(p: Any, first: int, most: int, seconds: float) -> int:
    # The largest n <= most with span(first, n) <= seconds: closed form, then settled exactly.
    shortest = _step_s(p, first)
    if p.slope_s <= 0.0 or p.base_s + p.slope_s * (first + most) <= p.limit_s:
        guess = seconds / shortest
    else:
        limited = 0
        if p.base_s + p.slope_s * first < p.limit_s:
            limited = math.ceil((p.limit_s - p.base_s) / p.slope_s) - first
        rest_s = seconds - limited * p.limit_s
        if rest_s <= 0.0:
            guess = seconds / p.limit_s
        else:
            b = p.base_s + p.slope_s * (first + limited) - 0.5 * p.slope_s
            guess = limited + 2.0 * rest_s / (b + math.sqrt(b * b + 2.0 * p.slope_s * rest_s))
    n = int(min(max(guess, 0.0), float(most)))
    while n < most and span_s(p.base_s, p.slope_s, p.limit_s, first, n + 1) <= seconds:
        n += 1
    while n > 0 and span_s(p.base_s, p.slope_s, p.limit_s, first, n) > seconds:
        n -= 1
    return n


@inlined
def advance(p: Any, now_s: float) -> None:
    """Advance phase `p`'s progress to `now_s` at its share."""
    seconds = now_s - p.at_s
    if seconds <= 0.0:
        return
    p.at_s = now_s
    if p.done >= p.steps:
        return
    this = _step_s(p, p.done)
    if seconds < (1.0 - p.part) * this:
        p.part += seconds / this
        if p.part >= 1.0:  # rounding
            p.part = 0.0
            p.done += 1
        return
    seconds -= (1.0 - p.part) * this
    p.done += 1
    p.part = 0.0
    most = p.steps - p.done
    if most <= 0:
        return
    n = _steps_within(p, p.done, most, seconds)
    seconds -= span_s(p.base_s, p.slope_s, p.limit_s, p.done, n)
    p.done += n
    if p.done < p.steps:
        p.part = min(max(seconds / _step_s(p, p.done), 0.0), 1.0 - 1e-16)


@jitable
def stop_at_boundary(p: Any, now_s: float) -> None:
    """End a run of steps at the next step boundary, after at least one."""
    advance(p, now_s)
    if p.part > 1.0 - _ON_BOUNDARY:
        p.done += 1
        p.part = 0.0
    boundary = p.done if p.part < _ON_BOUNDARY else p.done + 1
    p.steps = min(p.steps, max(boundary, 1))
    if p.done >= p.steps:
        p.part = 0.0
