"""The HybridGEMM split alpha."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from c2c.compiling.decision import decision, jitable
from c2c.compiling.guard import Returns
from c2c.policies.returns import SECONDS
from c2c.policies.traits import AlphaTraits
from c2c.ranges import FromZero, Share

__all__ = [
    "AlphaObservation",
    "AlphaState",
    "Feedback",
    "Priced",
    "Roofline",
    "Static",
    "adjust_alpha",
    "alpha_index",
    "best_alpha_index",
    "link_price",
]


class AlphaObservation(NamedTuple):
    """Observation of an instance's last step."""

    latency_s: float
    latency_slo_s: float
    hbm_utilisation: float  # utilisation of the slice's own HBM bandwidth
    c2c_utilisation: float  # utilisation of the chip's link by all tenants


class AlphaState(NamedTuple):
    """Memory of the controller: alpha and smoothed signals (negative: none)."""

    alpha: float
    latency_s: float
    hbm_utilisation: float
    c2c_utilisation: float


@jitable
def _is_state(state: AlphaState, *args: Any) -> bool:
    return 0.0 <= state.alpha <= 1.0


_ALPHA = Returns(AlphaState, "an AlphaState with alpha in [0, 1]", _is_state)


@decision(returns=_ALPHA)
def adjust_alpha(policy: Any, state: AlphaState, seen: AlphaObservation) -> AlphaState:
    """Return the next state after a step; a pure function."""


def _free(policy: Any, link_utilisation: float) -> float:
    return 0.0


@decision(default=_free, returns=SECONDS)
def link_price(policy: Any, link_utilisation: float) -> float:
    """Return the link's price: seconds of a step that a second of the whole link counts as.

    Args:
      link_utilisation: by all, over the device's last step.
    """


class Static(NamedTuple):
    """A constant alpha, `initial`."""

    initial: Share = 0.0

    @property
    def traits(self) -> AlphaTraits:
        """Constant traits of this policy."""
        return AlphaTraits(initial=self.initial)


@adjust_alpha.by(Static)
def _stay(policy: Static, state: AlphaState, seen: AlphaObservation) -> AlphaState:
    return state


class Feedback(NamedTuple):
    """Feedback control: a saturated link lowers alpha in [0, 1], a busy HBM raises it.

    Source: C2CServe, Algorithm 2; at |D| = tau alpha stays. The paper prints no values.

    Attributes:
      initial: alpha at activation.
      deadband: tau.
      step_fast: eta_fast, while the latency target is missed.
      step_slow: eta_slow.
      smoothing: the newest sample's weight in the average.
    """

    initial: Share = 0.0
    deadband: Share = 0.05
    step_fast: Share = 0.125
    step_slow: Share = 0.0625
    smoothing: Share = 0.5

    @property
    def traits(self) -> AlphaTraits:
        """Constant traits of this policy."""
        return AlphaTraits(initial=self.initial)


@adjust_alpha.by(Feedback)
def _algorithm_2(policy: Feedback, state: AlphaState, seen: AlphaObservation) -> AlphaState:
    if state.latency_s < 0.0:  # the first sample starts the averages
        latency = seen.latency_s
        hbm = seen.hbm_utilisation
        c2c = seen.c2c_utilisation
    else:
        w = policy.smoothing
        latency = state.latency_s + w * (seen.latency_s - state.latency_s)
        hbm = state.hbm_utilisation + w * (seen.hbm_utilisation - state.hbm_utilisation)
        c2c = state.c2c_utilisation + w * (seen.c2c_utilisation - state.c2c_utilisation)
    imbalance = c2c - hbm
    alpha = state.alpha
    if abs(imbalance) > policy.deadband:
        step = policy.step_fast if latency > seen.latency_slo_s else policy.step_slow
        alpha = max(0.0, alpha - step) if imbalance > 0.0 else min(1.0, alpha + step)
    return AlphaState(alpha, latency, hbm, c2c)


class Roofline(NamedTuple):
    """The variant with the least predicted step time (ours)."""

    initial: Share = 0.0  # alpha before the first step, and for the profiling of chunks

    @property
    def traits(self) -> AlphaTraits:
        """Constant traits of this policy."""
        return AlphaTraits(initial=self.initial, knows_costs=True)


class Priced(NamedTuple):
    """`Roofline` with a price for link time that grows with utilisation u (ours).

    A second of the link counts as `price` u / (1 - u) seconds beside the step's own.

    Attributes:
      initial: alpha before the first step.
      price: in seconds a second of link time at u = 1/2.
    """

    initial: Share = 0.0
    price: FromZero = 1.0

    @property
    def traits(self) -> AlphaTraits:
        """Constant traits of this policy."""
        return AlphaTraits(initial=self.initial, knows_costs=True)


@link_price.by(Priced)
def _congestion(policy: Priced, link_utilisation: float) -> float:
    used = min(link_utilisation, 0.999)  # the price of a full link is infinite
    return policy.price * used / (1.0 - used)


def _leave(policy: Any, state: AlphaState, seen: AlphaObservation) -> AlphaState:
    return state


for _knowing in (Roofline, Priced):
    adjust_alpha.by(_knowing)(_leave)


@jitable
def alpha_index(alpha: float, grid_size: int) -> int:
    """Return the nearest prebuilt variant on an even grid over [0, 1]."""
    return int(alpha * (grid_size - 1) + 0.5)


@jitable
def best_alpha_index(
    alone_s: Any, link_bytes: Any, available_gbps: float, gb_s: float = 0.0
) -> int:
    """Return the variant of least max(alone, bytes / share) + price.

    Args:
      alone_s: [A] of a step alone on the link.
      link_bytes: [A].
      available_gbps: expected link rate, 1e9 bytes/s.
      gb_s: price in seconds of 1e9 bytes.
    """
    best = 0
    best_s = math.inf
    for a in range(len(alone_s)):
        seconds = max(alone_s[a], link_bytes[a] / (available_gbps * 1e9))
        seconds += gb_s * link_bytes[a] / 1e9
        if seconds < best_s:
            best = a
            best_s = seconds
    return best
