"""Moves of busy engines to other slices for a model that finds none, and their cost."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from c2c.compiling.decision import decision
from c2c.errors import SettingError
from c2c.policies.evict import AfterWaiting, should_drain
from c2c.policies.returns import SECONDS
from c2c.policies.traits import PreemptTraits
from c2c.ranges import check_fields

__all__ = ["MovesAway", "move_s"]


def _never(policy: Any, tokens: int, weight_bytes: float, in_host: bool) -> float:
    return np.inf


@decision(default=_never, returns=SECONDS)
def move_s(policy: Any, tokens: int, weight_bytes: float, in_host: bool) -> float:
    """Return the cost in seconds of moving an engine to another slice; inf: no move.

    Args:
      policy: policy that decides.
      tokens: tokens of its requests so far, whose KV caches are recomputed.
      weight_bytes: bytes of its model's weights.
      in_host: whether the other chip's host memory has the weights.
    """


class MovesAway(NamedTuple):
    """Move of the cheapest engine to another slice; without a free one, `AfterWaiting`.

    The estimated cost is a load from the tier that has the weights, plus a time for each token.

    Source: ServerlessLLM's scheduler, whose knapsack over engines is the least one where an engine
    has one GPU; its rates are constants of a node.

    Attributes:
      after_s: seconds that a model waits before a busy slice is drained for it.
      token_s: seconds of resuming, for each token.
      fixed_s: seconds of resuming, fixed part.
      disk_gbps: disk rate of the estimate, 1e9 bytes/s.
      link_gbps: link rate of the estimate, 1e9 bytes/s.
    """

    after_s: float = 10.0
    token_s: float = 0.01
    fixed_s: float = 0.1
    disk_gbps: float = 6.9
    link_gbps: float = 375.0

    def check(self, where: str) -> None:
        """Raise SettingError for a setting that cannot work."""
        check_fields(AfterWaiting(self.after_s), where)
        for name in ("token_s", "fixed_s"):
            if not 0.0 <= getattr(self, name) < np.inf:
                raise SettingError(f"{where}.{name}", getattr(self, name), "seconds, at least 0")
        for name in ("disk_gbps", "link_gbps"):
            if not 0.0 < getattr(self, name) < np.inf:
                raise SettingError(f"{where}.{name}", getattr(self, name), "GB/s above 0")

    @property
    def traits(self) -> PreemptTraits:
        """Constant traits of this policy."""
        return PreemptTraits(look_every_s=self.after_s / 8.0, assumes_one_link=True)


@move_s.by(MovesAway)
def _resume_and_load(
    policy: MovesAway, tokens: int, weight_bytes: float, in_host: bool
) -> float:  # fmt: skip
    rate = policy.link_gbps if in_host else policy.disk_gbps
    return policy.fixed_s + policy.token_s * tokens + weight_bytes / (rate * 1e9)


@should_drain.by(MovesAway)
def _after_waiting(policy: MovesAway, oldest_wait_s: float) -> bool:
    return oldest_wait_s > policy.after_s
