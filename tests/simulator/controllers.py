"""A policy of variants with timers, as a controller of layouts would be: for tests."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from c2c.policies import VaryTraits, answer, note_end, variant

__all__ = ["Load", "Looks"]


class Looks(NamedTuple):
    """Memory of `Load`."""

    chosen: Any  # i8[instances]
    changed_s: Any  # f8[instances] when
    changes: Any  # i8[1]
    requests: Any  # i8[chips] that have ended since it looked last
    latency_s: Any  # f8[chips] of them
    looked: Any  # i8[chips] times that it looked
    at_s: Any  # f8[1000] when, of the first chip


class Load(NamedTuple):
    """Each period, a variant further for instances that are busy or whose chip answers late.

    Attributes:
      period_s: how often it looks.
      up: requests at an instance above which it goes a variant further, below which one back.
      late_s: mean latency of the period's requests above which it goes further, too.
      cool_down_s: for which an instance then keeps its variant.
      variants: how many there are.
    """

    period_s: float = 0.5
    up: int = 2
    late_s: float = math.inf
    cool_down_s: float = 0.0
    variants: int = 2

    def memory(self, fleet: Any) -> Looks:
        """Return what it remembers at the start."""
        chips = len(fleet.chip_first) - 1
        return Looks(
            chosen=np.zeros(fleet.instances, np.int64), changed_s=np.full(fleet.instances, -np.inf),
            changes=np.zeros(1, np.int64), requests=np.zeros(chips, np.int64),
            latency_s=np.zeros(chips), looked=np.zeros(chips, np.int64), at_s=np.zeros(1000),
        )  # fmt: skip

    @property
    def traits(self) -> VaryTraits:
        """Facts of this policy that hold at any time."""
        return VaryTraits(follows_waits=True, timer_s=self.period_s)


@note_end.by(Load)
def _note(
    policy: Load, own: Any, chip: int, instance: int, latency_s: float, execution_s: float,
    is_prompt: bool, is_steady: bool,
) -> bool:  # fmt: skip
    own.requests[chip] += 1
    own.latency_s[chip] += latency_s
    return True


@variant.by(Load)
def _chosen(policy: Load, own: Any, chip: int, instance: int, waiting: int, now_s: float) -> int:
    return int(own.chosen[instance])


@answer.by(Load)
def _look(policy: Load, own: Any, table: Any, count: int, chip: int, now_s: float) -> float:
    late = own.latency_s[chip] > policy.late_s * max(1, own.requests[chip])
    for n in range(count):
        row = table[n]
        i = row.instance
        busy = row.waiting + row.prompts + row.decodes
        wanted = own.chosen[i]
        if busy > policy.up or late:
            wanted = min(wanted + 1, policy.variants - 1)
        elif busy < policy.up:
            wanted = max(wanted - 1, 0)
        if wanted != own.chosen[i] and now_s - own.changed_s[i] >= policy.cool_down_s:
            own.chosen[i] = wanted
            own.changed_s[i] = now_s
            own.changes[0] += 1
    if chip == 0 and own.looked[chip] < len(own.at_s):
        own.at_s[own.looked[chip]] = now_s
    own.looked[chip] += 1
    own.requests[chip] = 0
    own.latency_s[chip] = 0.0
    return now_s + policy.period_s
