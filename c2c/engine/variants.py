"""Layouts over several devices, for workers and loop."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from c2c.engine.messages import Variant
from c2c.errors import SettingError
from c2c.serving import StepLayout

__all__ = ["check_layout", "has_lane_workers", "in_pools", "told_of"]

_TOLD = 1.0  # bytes above 0, as the loop announces only changes that copy something


def has_lane_workers(layout: StepLayout) -> bool:
    """Return whether each lane is a worker."""
    return bool(layout.worker) and not any(lane.paths for lane in layout.lanes)


def check_layout(layout: StepLayout | None, workers: int) -> None:
    """Check that a worker supports a layout."""
    where = "system.layout"
    if layout is None:
        return
    if has_lane_workers(layout) and not layout.nodes:
        if workers != len(layout.lanes):
            allowed = f"{len(layout.lanes)}, one for each lane of {layout.name}"
            raise SettingError("workers", workers, allowed)
        return
    if any(not lane.layers or not lane.paths for lane in layout.lanes):
        allowed = "a layout of layers that workers place, such as cocoserve's or a joint plan"
        raise SettingError(where, layout.name, allowed)
    if workers != 1 or len(layout.lanes) != 1:
        raise SettingError(
            "workers", workers, f"1, with a layout of one lane; {layout.name} has "
            f"{len(layout.lanes)}",
        )  # fmt: skip
    first, begins = next(iter(layout.memories)), layout.lanes[0].paths[0][0]
    if begins != first and not layout.worker:
        raise SettingError(where, layout.name, f"a layout that begins on {first}, not on {begins}")


def told_of(layout: StepLayout | None) -> Mapping[str, Any]:
    """Return a layout's fields of `Setup`."""
    if layout is None:
        return {}
    fields = {"layout": dict(layout.worker)}
    if not layout.lanes[0].paths:
        return fields
    lane, number = layout.lanes[0], {name: d for d, name in enumerate(layout.memories)}
    every = tuple(range(len(lane.paths)))
    opened = lane.open_homes or (every,) * len(lane.layers)
    return fields | {
        "devices": len(number),
        "homes": tuple(tuple(number[name] for name in path) for path in lane.paths),
        "variants": tuple(
            Variant(copies=tuple(tuple(number[n] for n in names) for names in layers), homes=homes)
            for layers, homes in zip(lane.layers, opened, strict=True)
        ),
    }


def in_pools(layout: StepLayout, usable_bytes: float) -> StepLayout:
    """Return a layout whose memories are a worker's pools.

    Copied layers take none. If lanes are workers, half of a pool is the other's.
    """
    if has_lane_workers(layout):
        usable_bytes /= 2.0
    lanes = tuple(
        replace(
            lane,
            reserve={n: b * usable_bytes / layout.memories[n] for n, b in lane.reserve.items()},
            copies=tuple(
                tuple(replace(copy, nbytes=_TOLD) for copy in copies) for copies in lane.copies
            ),
        )
        for lane in layout.lanes
    )
    return replace(layout, lanes=lanes, memories=dict.fromkeys(layout.memories, usable_bytes))
