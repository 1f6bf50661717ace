"""Plans of copies: the paper's Algorithm 1, and our planner by runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal, get_args

import numpy as np

from c2c.errors import unknown_name
from c2c.ranges import AboveZero, check_value
from c2c.systems.cocoserve.placement import Placement
from c2c.systems.cocoserve.speedup import Estimate, transitions

__all__ = [
    "Available",
    "Candidates",
    "DeviceOrder",
    "Room",
    "by_continuity",
    "by_runs",
    "in_order",
    "room_of",
    "scale_up",
]

Candidates = Literal["here", "anywhere"]
DeviceOrder = Literal["most_room", "index"]
Available = Literal["bytes", "work", "both"]
Room = Mapping[int, int]
"""Number of copies of layers that each device has room for."""

MORE = 1 + 1e-12
"""Least ratio of a better speedup to another; smaller differences may be rounding."""


def room_of(
    free_bytes: Mapping[int, float],
    idle: Mapping[int, float],
    *,
    layer_bytes: float,
    layers: int,
    available: Available = "bytes",
) -> dict[int, int]:
    """Count copies of layers that fit on each device.

    Args:
      free_bytes: by device, after a first copy's fixed cost.
      idle: idle share of each device's time.
      available: limit: "bytes", "work" in idle time, or "both".

    Raises:
      SettingError: an unknown limit, or `layer_bytes` not above 0.
    """
    check_value(available, Available, "available")
    check_value(layer_bytes, AboveZero, "layer_bytes")
    room = {}
    for device, free in free_bytes.items():
        by_bytes = max(0, int(free // layer_bytes))
        by_work = int(idle.get(device, 0.0) * layers) if available != "bytes" else by_bytes
        room[device] = by_work if available == "work" else min(by_bytes, by_work)
    return room


def in_order(room: Room, order: DeviceOrder) -> list[int]:
    """Return the devices in plan order, ties by index."""
    if order not in get_args(DeviceOrder):
        raise unknown_name("order", order, get_args(DeviceOrder))
    return sorted(room, key=lambda d: (-room[d] if order == "most_room" else 0, d))


def by_continuity(mask: Sequence[bool], candidates: Sequence[int]) -> list[int]:
    """Return candidates, longest joined run first, then by index."""
    n = len(mask)
    left, right = [0] * (n + 1), [0] * (n + 1)  # length of the held run before i; from i on
    for i in range(n):
        left[i + 1] = left[i] + 1 if mask[i] else 0
        right[n - 1 - i] = right[n - i] + 1 if mask[n - 1 - i] else 0
    return sorted(candidates, key=lambda i: (-left[i] - right[i + 1], i))


def scale_up(
    placement: Placement,
    room: Room,
    score: Estimate | Callable[[Placement], float],
    *,
    candidates: Candidates = "here",
    order: DeviceOrder = "index",
    sort_again: bool = False,
) -> Placement:
    """Return Algorithm 1's placement: a layer at a time while the score grows.

    Args:
      room: copies that fit on each device.
      score: S.
      candidates: "here": layers without a copy on the device; "anywhere": without any copy.
      sort_again: whether to sort after each copy, not once a device.
    """
    if candidates not in get_args(Candidates):
        raise unknown_name("candidates", candidates, get_args(Candidates))
    growth = _Growing(placement, score)
    for device in in_order(room, order):
        mask = growth.held(device)
        open_ = [i for i, here in enumerate(mask) if not here]
        if candidates == "anywhere":
            open_ = [i for i in open_ if growth.counts[i] == 1]
        budget = room[device]
        if not sort_again:
            for layer in by_continuity(mask, open_)[:budget]:
                growth.add(layer, device)
            continue
        while budget and open_:
            layer = by_continuity(mask, open_)[0]
            open_.remove(layer)
            budget -= 1
            mask[layer] = growth.add(layer, device)
    return growth.placement()


class _Growing:
    def __init__(
        self, placement: Placement, score: Estimate | Callable[[Placement], float]
    ) -> None:
        self._start, self._score = placement, score
        self._copies = [list(devices) for devices in placement.copies]
        self.counts = list(placement.counts)
        self._inverse = sum(1.0 / p for p in self.counts)
        self._transitions = transitions(placement)
        self._best = score.of(placement) if isinstance(score, Estimate) else score(placement)

    def held(self, device: int) -> list[bool]:
        return [device in devices for devices in self._copies]

    def add(self, layer: int, device: int) -> bool:
        """Add a copy if the score rises; return whether."""
        score, count = self._score, self.counts[layer]
        inverse, ends = self._inverse - 1.0 / (count * (count + 1)), self._transitions
        if device != self._start.first:
            beside = [i for i in (layer - 1, layer + 1) if 0 <= i < len(self._copies)]
            ends += 2 * (1 - sum(device in self._copies[i] for i in beside))
        self._copies[layer].append(device)
        if isinstance(score, Estimate):
            speed = score(inverse / len(self.counts), ends)
        else:
            speed = score(self.placement())
        if speed <= self._best * MORE:
            self._copies[layer].pop()
            return False
        self.counts[layer] += 1
        self._inverse, self._transitions, self._best = inverse, ends, speed
        return True

    def placement(self) -> Placement:
        start = self._start
        return Placement(tuple(map(tuple, self._copies)), parts=start.parts, first=start.first)


def by_runs(
    placement: Placement, room: Room, estimate: Estimate, *, order: DeviceOrder = "most_room"
) -> Placement:
    """Return our planner's placement: best runs on each device.

    Args:
      room: copies that fit on each device.
      order: of the devices; exact for two further devices with "most_room".
    """
    n = placement.layers
    copies = [list(devices) for devices in placement.copies]
    counts = np.array(placement.counts, dtype=float)
    begins = np.arange(n)[:, None]
    for device in in_order(room, order):
        mask = np.array([device in devices for devices in copies])
        per_run = 0.0 if device == placement.first else 2.0 * estimate.per_transition
        budget = room[device]
        while budget > 0 and not mask.all():
            sizes = np.arange(1, min(n, budget) + 1)
            ends = np.minimum(begins + sizes, n)
            saved = np.concatenate(([0.0], np.cumsum(1.0 / (counts * (counts + 1.0)))))
            taken = np.concatenate(([0], np.cumsum(mask)))
            beside = np.concatenate(([0], mask, [0]))  # layer i is at i + 1
            joined = beside[:-2, None] + beside[ends + 1]
            gain = (saved[ends] - saved[begins]) * estimate.shortened / n - per_run * (1 - joined)
            is_open = (taken[ends] == taken[begins]) & (begins + sizes <= n)
            gain = np.where(is_open, np.round(gain, 13), -np.inf)
            size, begin = divmod(int(np.argmax(gain.T)), n)  # ties: the shortest, then the first
            if gain[begin, size] <= 0:
                break
            run = range(begin, begin + size + 1)
            for layer in run:
                copies[layer].append(device)
            mask[run], counts[run] = True, counts[run] + 1
            budget -= len(run)
    return Placement(tuple(map(tuple, copies)), parts=placement.parts, first=placement.first)
