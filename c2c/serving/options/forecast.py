"""Starts of models before foretold requests."""

from __future__ import annotations

import math
from typing import Annotated, Any, NamedTuple

import numpy as np

from c2c.errors import SettingError
from c2c.policies import OptionTraits, jitable, on_request, on_timer
from c2c.ranges import Count, FromZero, In
from c2c.serving.placement import make_active, place_ahead
from c2c.serving.tables.actions import ask
from c2c.serving.tables.state import IDLE, Loop

__all__ = ["Forecast", "Foreseen", "foresee"]


class Foreseen(NamedTuple):
    """Memory of the forecast, by model.

    Attributes:
      gap_s: mean gap between bursts.
      deviation_s: mean deviation from it.
      gaps: gaps so far.
      due_s: start of the model; inf: none.
    """

    last_s: Any
    gap_s: Any
    deviation_s: Any
    gaps: Any
    due_s: Any


class Forecast(NamedTuple):
    """A model's start ahead of its next burst, on a free or less urgent slice.

    Source: ours, after "Serverless in the Wild" (USENIX ATC 2020), with the means of RFC 6298.

    Attributes:
      idle_s: shortest gap between two bursts of a model.
      weight: share of the newest gap in its means.
      deviations: mean deviations by which a start is early.
      gaps: gaps of a model before the first forecast.
    """

    idle_s: FromZero = 10.0
    weight: Annotated[float, In("(0, 1]")] = 0.25
    deviations: FromZero = 1.0
    gaps: Count = 2

    @property
    def traits(self) -> OptionTraits:
        """Constant traits of this option."""
        return OptionTraits(acts_when_idle=True)

    def memory(self, fleet: Any) -> Foreseen:
        """Return the initial memory."""
        n = len(fleet.deployment)
        return Foreseen(
            np.full(n, -np.inf), np.zeros(n), np.zeros(n), np.zeros(n, np.int64), np.full(n, np.inf)
        )

    def check_beside(self, system: Any) -> None:
        """Refuse active or otherwise placed models."""
        for field, value, allowed in (
            ("layout", system.layout, None),
            ("one_each", system.one_each, False),
            ("disaggregation.prompt_share", system.disaggregation.prompt_share, 0.0),
        ):
            if value != allowed:
                shown = value if isinstance(value, bool | float) else value.name
                raise SettingError(f"system.{field}", shown, f"{allowed} with option=forecast")


@jitable
def foresee(policy: Forecast, own: Foreseen, m: int, now_s: float) -> float:
    """Take an arrival of model `m` into the forecast; return its next start."""
    gap_s = now_s - own.last_s[m]
    own.last_s[m] = now_s
    if policy.idle_s < gap_s < math.inf:
        if own.gaps[m] == 0:
            own.gap_s[m], own.deviation_s[m] = gap_s, gap_s / 2.0
        else:
            own.deviation_s[m] += policy.weight * (abs(gap_s - own.gap_s[m]) - own.deviation_s[m])
            own.gap_s[m] += policy.weight * (gap_s - own.gap_s[m])
        own.gaps[m] += 1
    own.due_s[m] = math.inf
    if own.gaps[m] >= policy.gaps:
        ahead_s = own.gap_s[m] - policy.deviations * own.deviation_s[m]
        own.due_s[m] = now_s + max(policy.idle_s, ahead_s)
    return float(own.due_s[m])


@jitable
def _next_s(own: Foreseen) -> float:
    next_s = math.inf
    for m in range(len(own.due_s)):
        next_s = min(next_s, own.due_s[m])
    return float(next_s)


@jitable
def _comes_before(own: Foreseen, m: int, other: int) -> bool:
    # Whether the burst of model m is forecast for before that of another one.
    if own.gaps[other] == 0:
        return True
    return bool(own.last_s[m] + own.gap_s[m] < own.last_s[other] + own.gap_s[other])


@jitable
def _start(own: Foreseen, w: Loop, m: int, now_s: float) -> None:
    if w.s.model[m].active >= 0 or w.s.count[0].pending > 0:
        return
    i = place_ahead(w, m)
    if i < 0:
        return
    if w.s.instance[i].state == IDLE and not _comes_before(own, m, int(w.s.instance[i].model)):
        return
    make_active(w, m, i, now_s)
    w.s.instance[i].ahead = 1
    ask(w.s, w.s.instance[i].on_device)


@on_request.by(Forecast)
def _on_request(policy: Forecast, own: Foreseen, w: Loop, slot: int, now_s: float) -> float:
    foresee(policy, own, int(w.s.request[slot].model), now_s)
    return _next_s(own)


@on_timer.by(Forecast)
def _on_timer(
    policy: Forecast, own: Foreseen, w: Loop, open_requests: int, now_s: float
) -> float:  # fmt: skip
    for m in range(len(own.due_s)):
        if own.due_s[m] <= now_s:
            own.due_s[m] = math.inf
            _start(own, w, m, now_s)
    return _next_s(own)
