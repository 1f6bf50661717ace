"""Layouts side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from c2c.errors import SettingError
from c2c.serving.prepare.lanes import Copy, Lane, NodeKind, StepLayout, Way

__all__ = ["side_by_side"]


def side_by_side(
    layouts: Sequence[StepLayout], served: Sequence[tuple[int, Sequence[str]]]
) -> StepLayout:
    """Return one layout for unlike nodes.

    Args:
      served: by kind of node, its layout's number and models.

    Raises:
      SettingError: unlike resources or controllers.
    """
    first = layouts[0]
    if len(layouts) == len(served) == 1:
        return first
    for name in ("by_age", "by_turns", "switch_s", "reliefs"):
        values = [getattr(one, name) for one in layouts]
        if len(set(values)) > 1:
            raise SettingError(f"system.layout.{name}", values, "equal values of all models")
    lanes: list[Lane] = []
    numbers: list[tuple[int, ...]] = []
    for k, one in enumerate(layouts):
        numbers.append(tuple(range(len(lanes), len(lanes) + len(one.lanes))))
        lanes += [_numbered(lane, k) for lane in one.lanes]
    return replace(
        first,
        name=" and ".join(dict.fromkeys(one.name for one in layouts)),
        resources=tuple(dict.fromkeys(name for one in layouts for name in one.resources)),
        lanes=tuple(lanes),
        notes=tuple(dict.fromkeys(note for one in layouts for note in one.notes)),
        memories={_of(k, n): v for k, one in enumerate(layouts) for n, v in one.memories.items()},
        ways=tuple(_way(way, k) for k, one in enumerate(layouts) for way in one.ways),
        nodes=tuple(NodeKind(numbers[k], tuple(models)) for k, models in served),
    )


def _of(k: int, name: str) -> str:
    return f"{k}: {name}"


def _shares(k: int, shares: Mapping[str, float]) -> dict[str, float]:
    return {_of(k, name): value for name, value in shares.items()}


def _way(way: Way, k: int) -> Way:
    return replace(way, source=_of(k, way.source), target=_of(k, way.target))


def _numbered(lane: Lane, k: int) -> Lane:
    def copied(copy: Copy) -> Copy:
        return replace(copy, source=_of(k, copy.source), target=_of(k, copy.target))

    return replace(
        lane,
        place=replace(lane.place, name=_of(k, lane.place.name)),
        hands_to=None if lane.hands_to is None else _of(k, lane.hands_to),
        kv_homes=tuple(_shares(k, shares) for shares in lane.kv_homes),
        copies=tuple(tuple(map(copied, copies)) for copies in lane.copies),
        reserve=_shares(k, lane.reserve),
        layers=tuple(tuple(tuple(_of(k, m) for m in one) for one in v) for v in lane.layers),
        paths=tuple(tuple(_of(k, m) for m in path) for path in lane.paths),
    )
