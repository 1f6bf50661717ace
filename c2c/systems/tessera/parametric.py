"""Parametric cut: the latency policy's placement for every bandwidth of the link at once.

A placement's latency is a line in the seconds a byte: fixed seconds of kernels and latencies, plus
bytes times the seconds a byte. The best latency is the lower envelope of all lines. Two placements
are neighbours on it if no other is better at the crossing of their lines, which a minimum cut
decides. A better one splits the range in two.

Source: ours; for the method M. J. Eisner and D. G. Severance, JACM 23(4), 1976.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from c2c.errors import SettingError
from c2c.systems.tessera.plan import stages_of
from c2c.systems.tessera.planner import plan
from c2c.systems.tessera.work import Gpus, Work

__all__ = ["Range", "cut_curve"]

_CLOSE = 1e-6  # relative; a cut is exact to 30 bits


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """Range of bandwidths with one best placement.

    Attributes:
      from_gbps: lowest bandwidth of the range, 1e9 bytes a second; it ends at the next range's.
      gpu_of: each kernel's GPU.
      cuts: number of transfers between GPUs.
      fixed_s: part of the latency that does not depend on the bandwidth.
      nbytes: bytes sent between GPUs.
    """

    from_gbps: float
    gpu_of: tuple[int, ...]
    cuts: int
    fixed_s: float
    nbytes: float

    def latency_s(self, gbps: float) -> float:
        """Return the latency at a bandwidth."""
        return self.fixed_s + self.nbytes / (gbps * 1e9)


def cut_curve(work: Work, gpus: Gpus, low_gbps: float, high_gbps: float) -> tuple[Range, ...]:
    """Return the best placements between two bandwidths, the slowest link's first.

    Args:
      work: kernels to place.
      gpus: two GPUs; their link's bandwidth is ignored.
      low_gbps: bandwidth of the slowest link, the start of the first range.
      high_gbps: bandwidth of the fastest link.

    Raises:
      SettingError: not two GPUs, or bandwidths that are no range above 0.
    """
    if len(gpus.names) != 2:
        raise SettingError("gpus", gpus.names, "two GPUs: a cut has two sides")
    if not 0 < low_gbps < high_gbps:
        raise SettingError("gbps", (low_gbps, high_gbps), "0 < low < high")

    def best(gbps: float) -> Range:
        link = replace(gpus, gbps=((gbps,) * 2,) * 2)
        return _range(work, gpus, plan(work, link, "latency").gpu_of, low_gbps)

    fast, slow = best(high_gbps), best(low_gbps)
    found = [slow]
    todo = [(slow, fast)]
    while todo:
        left, right = todo.pop()
        if _is_one(left, right):
            continue
        # seconds a byte at the crossing; the faster link's placement sends more
        meet = (left.fixed_s - right.fixed_s) / (right.nbytes - left.nbytes)
        gbps = 1 / (meet * 1e9)
        middle = best(gbps)
        known = left.latency_s(gbps)
        if middle.latency_s(gbps) < known * (1 - _CLOSE):
            todo += [(middle, right), (left, middle)]
        else:
            found.append(replace(right, from_gbps=gbps))
    return tuple(found)


def _is_one(left: Range, right: Range) -> bool:
    """Return True if two placements cost the same at every bandwidth."""
    return right.nbytes <= left.nbytes or left.fixed_s <= right.fixed_s * (1 + _CLOSE)


def _range(work: Work, gpus: Gpus, gpu_of: Sequence[int], low_gbps: float) -> Range:
    """Return a placement's line: fixed seconds and bytes."""
    free = replace(gpus, gbps=((np.finfo(float).max / 1e9,) * 2,) * 2)
    stages, cuts = stages_of(work, free, gpu_of)
    nbytes = sum(
        e.weight * e.nbytes for e in work.transfers if gpu_of[e.source] != gpu_of[e.target]
    )
    return Range(
        from_gbps=low_gbps, gpu_of=tuple(gpu_of), cuts=cuts,
        fixed_s=sum(s.compute_s + s.communication_s for s in stages), nbytes=float(nbytes),
    )  # fmt: skip
