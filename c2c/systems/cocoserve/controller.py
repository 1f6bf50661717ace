"""The controller: from what was observed in a window to the next operation, if any.

Copies are added while devices have room (the paper's scale-up). Modules are migrated, copies
evicted and the batch lowered while answers come late or memory has run out (scale-down). The paper
prints no value of a threshold: the defaults are ours, and readings of the claims.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import get_args

from c2c.errors import SettingError, unknown_name
from c2c.systems.cocoserve.operations import Operation, operations_between
from c2c.systems.cocoserve.placement import Placement
from c2c.systems.cocoserve.planner import Available, by_runs, room_of
from c2c.systems.cocoserve.scale_down import scale_down
from c2c.systems.cocoserve.speedup import Estimate

__all__ = ["ControllerSettings", "Observation", "Scaled", "next_operation"]

_RELIEF = ("migrate", "evict", "cap", "offload")


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerSettings:
    """Settings of the controller.

    Attributes:
      period_s: between two looks; the loop's timer has it.
      t_up: share of a device's memory that stays free of copies; it gets copies above it.
      t_down: share of late requests above which relief begins.
      theta: share of late requests above which relief that has begun goes on.
      hysteresis: what `t_up` is more, and `theta` less, for copies after relief.
      cool_down_s: after an operation, in which there is no other.
      available: of a device, for copies: memory, idle time or both; by memory alone a busy device
        gets back the copies that it was relieved of.
      cap: rows of a step where nothing is late.
      batch_step: rows that a step loses or regains at once.
    """

    period_s: float = 1.0
    t_up: float = 0.3
    t_down: float = 0.1
    theta: float = 0.1
    hysteresis: float = 0.05
    cool_down_s: float = 2.0
    available: Available = "both"
    cap: int = 15
    batch_step: int = 5

    def __post_init__(self) -> None:
        for name, allowed, is_allowed in (
            ("period_s", "seconds above 0", 0 < self.period_s < math.inf),
            ("t_up", "a share from 0, below 1", 0 <= self.t_up < 1),
            ("t_down", "a share above 0, at most 1", 0 < self.t_down <= 1),
            (
                "theta",
                f"a share from 0 to t_down ({self.t_down:g})",
                0 <= self.theta <= self.t_down,
            ),
            ("hysteresis", "a share from 0, below 1", 0 <= self.hysteresis < 1),
            ("cool_down_s", "seconds, at least 0", 0 <= self.cool_down_s < math.inf),
            ("cap", "a whole number of rows above 0", self.cap >= 1),
            ("batch_step", "a whole number of rows above 0", self.batch_step >= 1),
        ):
            if not is_allowed:
                raise SettingError(name, getattr(self, name), allowed)
        if self.available not in get_args(Available):
            raise unknown_name("available", self.available, get_args(Available))


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """What was seen in the last window.

    Attributes:
      now_s: time.
      utilisation: share of the window in which each device computed.
      free_bytes: of each device.
      capacity_bytes: of each device.
      late_share: of the requests that ended, those beyond their targets.
      tokens_per_s: that were computed; kept for records, no rule reads it.
      latency_s: of requests, end to end, the mean; kept for records as well.
      out_of_memory: devices that had no block for a request.
      last: the last operation.
      last_s: when it ended.
    """

    now_s: float
    utilisation: Mapping[int, float]
    free_bytes: Mapping[int, float]
    capacity_bytes: Mapping[int, float]
    late_share: float
    tokens_per_s: float = 0.0
    latency_s: float = 0.0
    out_of_memory: tuple[int, ...] = ()
    last: Operation | None = None
    last_s: float = -math.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaled:
    """A model as it is served.

    Attributes:
      placement: of its layers.
      batch: rows of a step at most.
      sizes: bytes of modules, see `c2c.systems.cocoserve.modules.sizes`.
      estimate: of a placement's speedup.
      joined: devices that it may use, its first one included.
    """

    placement: Placement
    batch: int
    sizes: Mapping[str, float]
    estimate: Estimate
    joined: tuple[int, ...] = ()


def next_operation(
    seen: Observation, settings: ControllerSettings, model: Scaled
) -> Operation | None:
    """Return the next operation on a model; None: things are to stay as they are.

    Relief is one step of Algorithm 2, whose test is the next observation: memory that has run out
    moves layers with KV, then KV; late answers move layers of the busiest device. Without lateness
    the batch regains its rows, and then devices above `t_up` get runs of copies.
    """
    if seen.now_s - seen.last_s < settings.cool_down_s:
        return None
    is_after_relief = seen.last is not None and seen.last.kind in _RELIEF
    threshold = settings.theta if is_after_relief else settings.t_down
    if seen.out_of_memory or seen.late_share > threshold:
        return _relief(seen, settings, model)
    margin = settings.hysteresis if is_after_relief else 0.0
    if seen.late_share > max(0.0, settings.theta - margin):
        return None
    if model.batch < settings.cap:
        rows = min(settings.cap, model.batch + settings.batch_step)
        return Operation(kind="cap", rows=rows)
    return _copies(seen, settings, model, min(1.0, settings.t_up + margin))


def _relief(seen: Observation, settings: ControllerSettings, model: Scaled) -> Operation | None:
    held = model.placement.devices
    lacking = [d for d in seen.out_of_memory if d in held]
    busiest = max(held, key=lambda d: (seen.utilisation.get(d, 0.0), -d))
    start = (model.placement, model.batch)
    relief = scale_down(
        *start, lambda *now: now == start,
        free_bytes=_free(seen, model, 0.0),
        sizes=model.sizes, estimate=model.estimate, source=lacking[0] if lacking else busiest,
        batch_step=settings.batch_step, cause="memory" if lacking else "any",
    )  # fmt: skip
    return relief.operations[0] if relief.operations else None


def _copies(
    seen: Observation, settings: ControllerSettings, model: Scaled, t_up: float
) -> Operation | None:
    room = room_of(
        _free(seen, model, t_up), {d: 1.0 - busy for d, busy in seen.utilisation.items()},
        layer_bytes=model.sizes["layer"], layers=model.placement.layers,
        available=settings.available,
    )  # fmt: skip
    after = by_runs(model.placement, room, model.estimate)
    return next(iter(operations_between(model.placement, after)), None)


def _free(seen: Observation, model: Scaled, kept: float) -> dict[int, float]:
    """Return the bytes of the other devices that a model may use; a share is kept."""
    others = [d for d in model.joined or seen.free_bytes if d != model.placement.first]
    return {d: seen.free_bytes[d] - kept * seen.capacity_bytes[d] for d in others}
