"""Eviction of idle models from slices."""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple

from c2c.compiling.decision import decision
from c2c.policies.returns import YES_OR_NO
from c2c.policies.traits import PreemptTraits
from c2c.ranges import In

__all__ = [
    "AfterWaiting",
    "ByPriority",
    "LeastRecentlyUsed",
    "goes_before",
    "should_drain",
]


@decision(returns=YES_OR_NO)
def goes_before(policy: Any, a_last_used_s: float, b_last_used_s: float) -> bool:
    """Return whether idle model a is evicted before idle model b."""


class LeastRecentlyUsed(NamedTuple):
    """Eviction of the idle model unused for longest.

    Source: C2CServe section 6.1 step 2, with an open order.
    """


@goes_before.by(LeastRecentlyUsed)
def _least_recently_used(
    policy: LeastRecentlyUsed, a_last_used_s: float, b_last_used_s: float
) -> bool:  # fmt: skip
    return a_last_used_s < b_last_used_s


@decision(returns=YES_OR_NO)
def should_drain(policy: Any, oldest_wait_s: float) -> bool:
    """Return whether to drain a busy slice for a model that waited so long."""


class AfterWaiting(NamedTuple):
    """Drain of a busy slice after a wait of `after_s` seconds (ours)."""

    after_s: Annotated[float, In("(0, inf]")] = 10.0

    @property
    def traits(self) -> PreemptTraits:
        """Constant traits of this policy."""
        return PreemptTraits(look_every_s=self.after_s / 8.0)


@should_drain.by(AfterWaiting)
def _after_waiting(policy: AfterWaiting, oldest_wait_s: float) -> bool:
    return oldest_wait_s > policy.after_s


class ByPriority(NamedTuple):
    """`AfterWaiting` among equal priorities; less urgent requests yield at once.

    Source: C2CServe section 6.1 step 2; the mechanism is ours.
    """

    after_s: Annotated[float, In("(0, inf]")] = 10.0

    @property
    def traits(self) -> PreemptTraits:
        """Constant traits of this policy."""
        return PreemptTraits(look_every_s=self.after_s / 8.0, sets_aside=True)


@should_drain.by(ByPriority)
def _among_equals(policy: ByPriority, oldest_wait_s: float) -> bool:
    return oldest_wait_s > policy.after_s
