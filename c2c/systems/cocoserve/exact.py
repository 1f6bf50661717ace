"""Best placement under counted transitions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Final

import numpy as np
import numpy.typing as npt

from c2c.errors import SettingError
from c2c.systems.cocoserve.placement import Placement
from c2c.systems.cocoserve.planner import Room
from c2c.systems.cocoserve.speedup import Estimate

__all__ = ["MOST_DEVICES", "exact"]

MOST_DEVICES: Final = 3
"""Largest number of devices that get copies; with the first device, four."""


def exact(placement: Placement, room: Room, estimate: Estimate) -> Placement:
    """Return the placement of best estimate with added copies.

    Args:
      room: copies that each device has room for.

    Raises:
      SettingError: more than `MOST_DEVICES` devices with room.
    """
    candidates = [d for d in sorted(room) if room[d] > 0]
    if len(candidates) > MOST_DEVICES:
        raise SettingError("room", dict(room), f"room on at most {MOST_DEVICES} devices")
    if estimate.shortened <= 0:
        return placement
    begun = [d for d in candidates if any(d in devices for devices in placement.copies)]
    new = [d for d in candidates if d not in begun]
    best, most = placement, estimate.of(placement)
    for size in range(len(new) + 1):
        for chosen in combinations(new, size):
            trial = _filled(placement, [*begun, *chosen], room, estimate)
            if (score := estimate.of(trial)) > most:
                best, most = trial, score
    return best


def _filled(
    placement: Placement, devices: Sequence[int], room: Room, estimate: Estimate
) -> Placement:
    n, copies = placement.layers, [list(row) for row in placement.copies]
    axes = []
    for device in devices:
        row = np.array([device in holders for holders in copies])
        total = min(n, int(row.sum()) + room[device])
        if total == n:
            for holders in copies:
                holders.extend([device] * (device not in holders))
        else:
            per_run = 0.0 if device == placement.first else 2.0 * estimate.per_transition
            axes.append(_Axis(device, row, total, per_run))
    if axes:
        fixed = np.array([len(set(holders) - {a.device for a in axes}) for holders in copies])
        weight = estimate.shortened / n
        for axis, row in zip(axes, _solved(axes, fixed, weight), strict=True):
            for layer in np.flatnonzero(row & ~axis.held):
                copies[layer].append(axis.device)
    return Placement(tuple(map(tuple, copies)), parts=placement.parts, first=placement.first)


@dataclass(frozen=True, slots=True)
class _Axis:
    """A device whose layers the search chooses.

    Attributes:
      held: bool[layers].
      per_run: cost of a run of layers, in unscaled steps.
    """

    device: int
    held: npt.NDArray[np.bool_]
    total: int
    per_run: float

    @property
    def counted(self) -> int:
        return int(2 * self.total <= len(self.held))

    @property
    def states(self) -> int:
        return 1 + (self.total if self.counted else len(self.held) - self.total)


def _solved(
    axes: Sequence[_Axis], fixed: npt.NDArray[np.int64], weight: float
) -> list[npt.NDArray[np.bool_]]:
    """Return bool[layers] for each axis: layers that its device holds."""
    d, n = len(axes), len(fixed)
    costs = np.full((2,) * d + tuple(a.states for a in axes), np.inf)
    costs[(0,) * (2 * d)] = 0.0
    bits = np.indices((2,) * d).sum(0).reshape((2,) * d + (1,) * d)
    was = []  # for each layer and axis: True if the previous layer is held, by state after the axis
    for layer in range(n):
        choices = []
        for k, axis in enumerate(axes):
            off, on = _of(k, 0), _of(k, 1)
            begun = costs[off] + axis.per_run
            choice = np.empty(costs.shape, dtype=bool)
            np.less(costs[on], costs[off], out=choice[off])
            np.less_equal(costs[on], begun, out=choice[on])
            lowest = np.minimum(costs[off], costs[on])
            np.minimum(costs[on], begun, out=costs[on])
            costs[off] = np.inf if axis.held[layer] else lowest
            choices.append(choice)
        was.append(choices)
        with np.errstate(divide="ignore"):  # infinite where no device holds the layer
            costs += weight / (fixed[layer] + bits)
        for k, axis in enumerate(axes):
            part = costs[_of(k, axis.counted)]
            counts = np.moveaxis(part, d - 1 + k, 0)
            counts[1:] = counts[:-1].copy()
            counts[0] = np.inf
    ends = tuple(a.states - 1 for a in axes)
    last = costs.reshape(*(2,) * d, -1)[..., -1]
    state = [int(b) for b in np.unravel_index(int(np.argmin(last)), last.shape)]
    counts_left = list(ends)
    result = [np.zeros(n, dtype=bool) for _ in axes]
    for layer in reversed(range(n)):
        for k, axis in enumerate(axes):
            result[k][layer] = bool(state[k])
            counts_left[k] -= state[k] == axis.counted
        for k in reversed(range(d)):
            state[k] = int(was[layer][k][(*state, *counts_left)])
    return result


def _of(k: int, bit: int) -> tuple[slice | int, ...]:
    return (*(slice(None),) * k, bit)
