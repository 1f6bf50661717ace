"""Choice of a chip's MIG layout while it serves, from recent requests."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from c2c.compiling.decision import decision
from c2c.errors import SettingError
from c2c.policies.returns import A_HOME
from c2c.policies.traits import RecutTraits

__all__ = ["LAYOUT_DTYPE", "ByRegret", "LayoutStays", "next_layout"]

# A row for each possible layout of a chip.
LAYOUT_DTYPE = np.dtype(
    [
        ("is_here", "i8"),  # 1: present layout
        ("requests", "i8"),  # arrivals since the last look, equal in all rows
        ("in_time", "f8"),  # estimate of those that meet their targets on this layout
        ("price", "f8"),  # requests that a change to it would make late; 0 if present
    ],
    align=True,
)


@decision(returns=A_HOME, rows=LAYOUT_DTYPE)
def next_layout(policy: Any, own: Any, table: Any, count: int, now_s: float) -> int:
    """Return the row of the layout to change the chips to, or -1: no change.

    Called between two events of the loop, after each `RecutTraits.requests` arrivals. Prices are
    lower bounds at first; it is called again with the exact price of its answer.

    Args:
      policy: policy that decides.
      own: own arrays of the policy, from its method `memory(self, count)`.
      table: record array of `LAYOUT_DTYPE`; the first `count` rows are valid.
      count: number of layouts.
      now_s: current time.
    """


class LayoutStays(NamedTuple):
    """No change: the layout of the run's settings."""


@next_layout.by(LayoutStays)
def _none(policy: LayoutStays, own: Any, table: Any, count: int, now_s: float) -> int:
    return -1


class ByRegret(NamedTuple):
    """Change to a layout once its absence has cost more requests than the change will.

    For each layout the policy sums the requests in time beyond those of the present layout, less
    `margin`, never below 0. The layout whose sum exceeds its price by most is chosen, and all sums
    restart at 0.

    Ours. The sum is Page's test for a change (Biometrika 41, 1954), the rule for the price that of
    renting until the rent paid is the price: at most twice what a change at the right moment costs.

    Attributes:
      requests: arrivals between two looks.
      before: earlier requests that fill the chips in the estimate.
      margin: share of the requests by which a layout may be better for good.
      drain: whether requests that compute on a removed slice end there; else they restart
        elsewhere.
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
        """Constant traits of this policy."""
        return RecutTraits(self.requests, self.before, self.margin, self.drain)

    def memory(self, count: int) -> Any:
        """Return f8[count]: requests lost so far for want of each layout."""
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
