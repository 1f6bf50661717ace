"""Options: mechanisms that act at moments of the serving loop."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from c2c.compiling.decision import decision, jitable
from c2c.policies.returns import NEXT
from c2c.policies.traits import OptionTraits, traits_of

__all__ = ["Both", "NoOption", "on_request", "on_steps", "on_timer"]


@jitable
def _never(policy: Any, own: Any, w: Any, where: int, now_s: float) -> float:
    return math.inf


# An option acts by the loop's own moves, such as `c2c.serving.early_end.end_request`, and keeps
# what it must know among its own arrays.
@decision(default=_never, returns=NEXT)
def on_request(policy: Any, own: Any, w: Any, slot: int, now_s: float) -> float:
    """Act on a request that was routed or queued.

    Returns:
      Time at which `on_timer` is due at the latest; inf: no change.
    """


@decision(default=_never, returns=NEXT)
def on_steps(policy: Any, own: Any, w: Any, device: int, now_s: float) -> float:
    """Act after a device's steps, whose requests have their tokens; as `on_request`."""


@decision(default=_never, returns=NEXT)
def on_timer(policy: Any, own: Any, w: Any, open_requests: int, now_s: float) -> float:
    """Act at a requested time, or earlier; as `on_request`."""


class NoOption(NamedTuple):
    """Nothing beside the policies."""

    @property
    def traits(self) -> OptionTraits:
        """Constant traits."""
        return OptionTraits(acts=False)


class Both(NamedTuple):
    """Two options, the first before the second."""

    first: Any
    second: Any

    @property
    def traits(self) -> OptionTraits:
        """Constant traits."""
        both = [traits_of(OptionTraits, one) for one in self]
        return OptionTraits(
            acts=any(one.acts for one in both),
            acts_when_idle=any(one.acts_when_idle for one in both),
        )


@on_request.by(Both)
def _on_request(policy: Both, own: Any, w: Any, slot: int, now_s: float) -> float:
    first_s = on_request(policy.first, own.first, w, slot, now_s)
    return float(min(first_s, on_request(policy.second, own.second, w, slot, now_s)))


@on_steps.by(Both)
def _on_steps(policy: Both, own: Any, w: Any, device: int, now_s: float) -> float:
    first_s = on_steps(policy.first, own.first, w, device, now_s)
    return float(min(first_s, on_steps(policy.second, own.second, w, device, now_s)))


@on_timer.by(Both)
def _on_timer(policy: Both, own: Any, w: Any, open_requests: int, now_s: float) -> float:
    first_s = on_timer(policy.first, own.first, w, open_requests, now_s)
    return float(min(first_s, on_timer(policy.second, own.second, w, open_requests, now_s)))


for _moment in (on_request, on_steps, on_timer):  # that compiled code knows all three
    _moment.by(NoOption)(_never)
