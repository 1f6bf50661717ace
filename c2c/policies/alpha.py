"""The HybridGEMM split alpha: its start value and its control at run time."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from numba.extending import register_jitable

__all__ = [
    "ALPHA_POLICIES",
    "AlphaObservation",
    "AlphaParams",
    "AlphaState",
    "adjust_alpha",
    "alpha_index",
    "best_alpha_index",
    "initial_alpha",
]

STATIC: Final = 0
FEEDBACK: Final = 1
ROOFLINE: Final = 2
ALPHA_POLICIES: Final = {"static": STATIC, "feedback": FEEDBACK, "roofline": ROOFLINE}


class AlphaParams(NamedTuple):
    """Settings of the alpha controller; the paper prints none of the values."""

    policy: int  # ALPHA_POLICIES
    initial: float  # alpha at activation
    deadband: float  # tau
    step_fast: float  # eta_fast
    step_slow: float  # eta_slow
    smoothing: float  # weight of the newest sample in the moving average


class AlphaObservation(NamedTuple):
    """What one instance saw over its last step."""

    latency_s: float
    latency_slo_s: float
    hbm_utilisation: float  # of the slice's own HBM bandwidth
    c2c_utilisation: float  # of the chip's shared link, all tenants


class AlphaState(NamedTuple):
    """The controller's memory: alpha and the smoothed signals (negative: no sample yet)."""

    alpha: float
    latency_s: float
    hbm_utilisation: float
    c2c_utilisation: float


@register_jitable
def initial_alpha(params: AlphaParams) -> AlphaState:
    """Return the controller's state when a model is activated.

    Source: C2CServe section 6.4, alpha = 0; section 6.1 step 4 would take it from the profiling
    table, which the `roofline` policy does at every step.
    """
    return AlphaState(params.initial, -1.0, 0.0, 0.0)


@register_jitable
def adjust_alpha(state: AlphaState, seen: AlphaObservation, params: AlphaParams) -> AlphaState:
    """Return the next state: a saturated link lowers alpha (more AsymGEMM), a busy HBM raises it.

    Pure: equal arguments give equal results. Alpha stays in [0, 1].

    Source: C2CServe, Algorithm 2; at |D| = tau the listing updates and the prose does not, we
    keep alpha there.
    """
    if state.latency_s < 0.0:  # the first sample starts the averages
        latency = seen.latency_s
        hbm = seen.hbm_utilisation
        c2c = seen.c2c_utilisation
    else:
        w = params.smoothing
        latency = state.latency_s + w * (seen.latency_s - state.latency_s)
        hbm = state.hbm_utilisation + w * (seen.hbm_utilisation - state.hbm_utilisation)
        c2c = state.c2c_utilisation + w * (seen.c2c_utilisation - state.c2c_utilisation)
    imbalance = c2c - hbm
    alpha = state.alpha
    if abs(imbalance) > params.deadband:
        step = params.step_fast if latency > seen.latency_slo_s else params.step_slow
        alpha = max(0.0, alpha - step) if imbalance > 0.0 else min(1.0, alpha + step)
    return AlphaState(alpha, latency, hbm, c2c)


@register_jitable
def alpha_index(alpha: float, grid_size: int) -> int:
    """Return the nearest prebuilt variant on an even grid over [0, 1]."""
    return int(alpha * (grid_size - 1) + 0.5)


@register_jitable
def best_alpha_index(alone_s: Any, link_bytes: Any, available_gbps: float) -> int:
    """Return the variant with the least predicted step time max(alone, bytes / share).

    Args:
      alone_s: [A] seconds of a step for each variant with the link to itself.
      link_bytes: [A] bytes each variant moves over the link.
      available_gbps: link rate this instance can expect now.

    Ours ("roofline"): the controller knows the cost model and jumps to the predicted best alpha;
    ties go to the variant that moves fewer bytes over the shared link.
    """
    best = 0
    best_s = max(alone_s[0], link_bytes[0] / (available_gbps * 1e9))
    for a in range(1, len(alone_s)):
        t = max(alone_s[a], link_bytes[a] / (available_gbps * 1e9))
        if t < best_s:
            best = a
            best_s = t
    return best
