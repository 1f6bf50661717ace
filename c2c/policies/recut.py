"""Choice of a chip's MIG layout while it serves, from the requests that came."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from c2c.compiling.decision import decision
from c2c.errors import SettingError
from c2c.policies.returns import A_HOME
from c2c.policies.traits import RecutTraits

__all__ = ["LAYOUT_DTYPE", "ByRegret", "LayoutStays", "next_layout"]

# One row a layout that the chip can have.
LAYOUT_DTYPE = np.dtype(
    [
        ("is_here", "i8"),  # 1: it is the chip's now
        ("requests", "i8"),  # that came since the last look and are weighed, the same in all rows
        ("in_time", "f8"),  # of these, the estimate of how many meet their targets on it
        ("price", "f8"),  # requests that a re-cut to it is taken to make late; 0 where it is
    ],
    align=True,
)


@decision(returns=A_HOME, rows=LAYOUT_DTYPE)
def next_layout(policy: Any, own: Any, table: Any, count: int, now_s: float) -> int:
    """Return the row of the layout that the chips are cut into now, or -1: none.

    Asked between two events of the loop, when `RecutTraits.requests` have come since the last time;
    prices are lower bounds at first, and it is asked again once that of its answer is known.

    Args:
      policy: decides.
      own: arrays of the policy's own, from its method `memory(self, count)`.
      table: record array of `LAYOUT_DTYPE`; the first `count` rows are valid.
      count: number of layouts.
      now_s: the time.
    """


class LayoutStays(NamedTuple):
    """The layout is that of the run's settings."""


@next_layout.by(LayoutStays)
def _none(policy: LayoutStays, own: Any, table: Any, count: int, now_s: float) -> int:
    return -1


class ByRegret(NamedTuple):
    """A layout comes when its absence has cost more requests than its coming will.

    What each layout would have had in time, more than the one that is there had, is added up from
    look to look, less `margin` and never below 0. Where the sum exceeds the price of the layout by
    most, the chips are cut into it, and all sums begin anew.

    Ours. The sum is Page's test for a change (Biometrika 41, 1954), the rule for the price that of
    renting until the rent paid is the price: at most twice what a change at the right moment costs.

    Attributes:
      requests: that come between two looks.
      before: requests before these that fill the chips in the estimate.
      margin: share of the requests by which a layout may be better for good.
      drain: requests that compute on a slice that goes end there, or they begin again elsewhere.
    """

    requests: int = 100
    before: int = 100
    margin: float = 0.01
    drain: bool = False

    def check(self, where: str) -> None:
        """Raise SettingError for a setting that cannot work."""
        if self.requests < 1:
            raise SettingError(f"{where}.requests", self.requests, "a whole number above 0")
        if self.before < 0:
            raise SettingError(f"{where}.before", self.before, "a whole number, at least 0")
        if not 0.0 <= self.margin < 1.0:
            raise SettingError(f"{where}.margin", self.margin, "a share in [0, 1)")

    @property
    def traits(self) -> RecutTraits:
        """Facts that hold at any time."""
        return RecutTraits(self.requests, self.before, self.margin, self.drain)

    def memory(self, count: int) -> Any:
        """Return f8[count]: what was lost so far for want of each layout, requests."""
        return np.zeros(count)


@next_layout.by(ByRegret)
def _by_regret(policy: ByRegret, own: Any, table: Any, count: int, now_s: float) -> int:
    here = 0.0
    for k in range(count):
        if table[k].is_here != 0:
            here = table[k].in_time
    best, most = -1, 0.0
    for k in range(count):
        gain = table[k].in_time - here - policy.margin * table[k].requests
        own[k] = max(0.0, own[k] + gain)
        if own[k] - table[k].price > most:
            best, most = k, own[k] - table[k].price
    if best >= 0:
        own[:] = 0.0
    return best
