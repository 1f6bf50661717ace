"""Eviction of idle models from slices, and drains of busy slices."""

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
    """Return True if idle model a is evicted before idle model b.

    Args:
      policy: policy that decides.
      a_last_used_s: time at which a last had work.
      b_last_used_s: time at which b last had work.
    """


class LeastRecentlyUsed(NamedTuple):
    """Eviction of the idle model unused for longest.

    Source: C2CServe section 6.1 step 2, which leaves the victim order open; ours is LRU.
    """


@goes_before.by(LeastRecentlyUsed)
def _least_recently_used(
    policy: LeastRecentlyUsed, a_last_used_s: float, b_last_used_s: float
) -> bool:  # fmt: skip
    return a_last_used_s < b_last_used_s


@decision(returns=YES_OR_NO)
def should_drain(policy: Any, oldest_wait_s: float) -> bool:
    """Return True if a model waited so long for a slice that a busy one must be drained for it.

    Args:
      policy: policy that decides.
      oldest_wait_s: waiting time of the model's first request.
    """


class AfterWaiting(NamedTuple):
    """Drain of a busy slice after a model waited for `after_s` seconds.

    Ours: the paper evicts "inactive or low-priority" instances and leaves busy slices open;
    without this rule a steady stream to the loaded models starves the others.
    """

    after_s: Annotated[float, In("(0, inf]")] = 10.0

    @property
    def traits(self) -> PreemptTraits:
        """Constant traits of this policy."""
        return PreemptTraits(look_every_s=self.after_s / 8.0)


@should_drain.by(AfterWaiting)
def _after_waiting(policy: AfterWaiting, oldest_wait_s: float) -> bool:
    return oldest_wait_s > policy.after_s


class ByPriority(NamedTuple):
    """`AfterWaiting` among equal priorities; less urgent requests give up their slice at once.

    They are set aside at the next step boundary and continue when there is room; they keep their
    generated tokens, and their KV cache is recomputed.

    Source: C2CServe section 6.1 step 2, which evicts "inactive or low-priority" instances; the
    mechanism is ours.
    """

    after_s: Annotated[float, In("(0, inf]")] = 10.0

    @property
    def traits(self) -> PreemptTraits:
        """Constant traits of this policy."""
        return PreemptTraits(look_every_s=self.after_s / 8.0, sets_aside=True)


@should_drain.by(ByPriority)
def _among_equals(policy: ByPriority, oldest_wait_s: float) -> bool:
    return oldest_wait_s > policy.after_s
