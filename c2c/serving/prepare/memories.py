"""Memories that a layout's lanes share."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from c2c.errors import SettingError
from c2c.hardware import Slice
from c2c.models import ModelSpec, kv_bytes_per_token
from c2c.ranges import AboveZero, check_value
from c2c.serving.prepare.lanes import Copy, Lane, StepLayout
from c2c.serving.tables.optional_tables import KvHomes

__all__ = ["kv_homes", "lane_tokens"]


def kv_homes(
    layout: StepLayout | None, specs: Sequence[ModelSpec], kinds: Sequence[Slice]
) -> KvHomes:
    """Return a layout's arrays, empty without shared memories.

    Raises:
      SettingError: too small a memory, or a missing way.
    """
    lanes = [] if layout is None else [layout.lane(kind) for kind in kinds]
    memories = [] if layout is None else list(layout.memories)
    n, m = len(kinds), len(memories)
    homes = max((len(lane.kv_homes) for lane in lanes), default=0) or 1
    variants = layout.variants if layout is not None else 1
    ways = 0 if layout is None else len(layout.ways)
    result = KvHomes(
        room_bytes=np.array([] if layout is None else [*layout.memories.values()], np.float64),
        homes=np.array([len(lane.kv_homes) for lane in lanes] or [0] * n, np.int64),
        token_bytes=np.zeros((len(specs) * n, homes, m)),
        is_open=np.zeros((n, variants, homes), np.int64),
        copied_bytes=np.zeros((n, variants, m)),
        reserve_bytes=np.zeros((n, m)),
        sent_bytes=np.zeros((n, variants, variants, ways)),
        moved_bytes=np.zeros((len(specs) * n, homes, homes, ways)),
        reliefs=np.array([0 if layout is None else layout.reliefs]),
    )
    if layout is None or m == 0:
        return result
    for k, lane in enumerate(lanes):
        _check_room(layout, lane)
        result.reserve_bytes[k] = [lane.reserve.get(name, 0.0) for name in memories]
        for v in range(variants):
            opened = lane.open_homes[min(v, len(lane.open_homes) - 1)] if lane.open_homes else None
            result.is_open[k, v, list(range(len(lane.kv_homes)) if opened is None else opened)] = 1
            for copy in _copies(lane, v):
                result.copied_bytes[k, v, memories.index(copy.target)] += copy.nbytes
            for u in range(variants):
                for copy in set(_copies(lane, v)) - set(_copies(lane, u)):
                    way = _way(layout, copy.source, copy.target)
                    result.sent_bytes[k, u, v, way] += copy.nbytes
        for row, spec in enumerate(specs):
            one = float(kv_bytes_per_token(spec))
            for h, shares in enumerate(lane.kv_homes):
                # Whole bytes add up without rounding.
                result.token_bytes[row * n + k, h] = [
                    math.ceil(one * shares.get(name, 0.0)) for name in memories
                ]
                for g, others in enumerate(lane.kv_homes if variants > 1 else ()):
                    for way, share in _moved(layout, shares, others):
                        result.moved_bytes[row * n + k, h, g, way] += one * share
    return result


def lane_tokens(layout: StepLayout, spec: ModelSpec, place: Slice) -> int:
    """Return the tokens of a kind of lane alone, in the worst variant."""
    lane, one = layout.lane(place), kv_bytes_per_token(spec)
    if spec.name not in lane.steps:
        return 0
    if not lane.kv_homes:
        return int(lane.kv_bytes // one)
    room = dict(layout.memories)
    for other in (other for other in layout.lanes if other is not lane):
        copied = [_bytes_of(copies) for copies in other.copies]
        for name in room:
            room[name] -= other.reserve.get(name, 0.0)
            room[name] -= max((room_of.get(name, 0.0) for room_of in copied), default=0.0)
    least = math.inf
    for v in range(max(1, len(lane.copies), len(lane.open_homes))):
        taken = _bytes_of(_copies(lane, v))
        opened = lane.open_homes[v] if lane.open_homes else range(len(lane.kv_homes))
        least = min(
            least,
            max(
                min(
                    (room[name] - taken.get(name, 0.0)) // math.ceil(one * share)
                    for name, share in lane.kv_homes[h].items()
                    if share > 0.0
                )
                for h in opened
            ),
        )
    return int(max(0.0, least))


def _copies(lane: Lane, variant: int) -> tuple[Copy, ...]:
    return lane.copies[min(variant, len(lane.copies) - 1)] if lane.copies else ()


def _bytes_of(copies: Sequence[Copy]) -> dict[str, float]:
    result: dict[str, float] = {}
    for copy in copies:
        result[copy.target] = result.get(copy.target, 0.0) + copy.nbytes
    return result


def _check_room(layout: StepLayout, lane: Lane) -> None:
    check_value(layout.memories, Mapping[str, AboveZero], "layout.memories", "bytes")
    for name, room in layout.memories.items():
        reserve = sum(other.reserve.get(name, 0.0) for other in layout.lanes)
        if reserve > room:
            raise SettingError(f"layout.lanes.reserve.{name}", reserve, f"at most {room} in all")
    for name, nbytes in lane.reserve.items():
        if name not in layout.memories or not nbytes >= 0.0:
            allowed = f"bytes, at least 0, of {', '.join(layout.memories)}"
            raise SettingError(f"layout.lanes.{lane.place.name}.reserve.{name}", nbytes, allowed)
    for copies in lane.copies:
        for copy in copies:
            if copy.target not in layout.memories or not copy.nbytes > 0.0:
                allowed = f"bytes above 0, to one of {', '.join(layout.memories)}"
                raise SettingError(f"layout.lanes.{lane.place.name}.copies", copy, allowed)


def _way(layout: StepLayout, source: str, target: str) -> int:
    for number, way in enumerate(layout.ways):
        if (way.source, way.target) == (source, target):
            return number
    ways = ", ".join(f"{way.source} to {way.target}" for way in layout.ways) or "none"
    raise SettingError("layout.ways", ways, f"one from {source} to {target}")


def _moved(
    layout: StepLayout, shares: Mapping[str, float], others: Mapping[str, float]
) -> list[tuple[int, float]]:
    more = {name: others.get(name, 0.0) - shares.get(name, 0.0) for name in layout.memories}
    result = []
    for source in [name for name, share in more.items() if share < 0.0]:
        for target in [name for name, share in more.items() if share > 0.0]:
            share = min(-more[source], more[target])
            if share > 0.0:
                result.append((_way(layout, source, target), share))
                more[source] += share
                more[target] -= share
    return result
