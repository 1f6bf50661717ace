"""Placement of MIG instances by the vendor's rule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from c2c.errors import SettingError
from c2c.ranges import AboveZero, Count, check_fields

__all__ = ["Extent", "Partition", "free_for", "starts", "where_they_go"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """A chip's compute and memory slices, and seconds of changes.

    `create_s`: first instance with one compute slice, `create_wide_s`: with several,
    `create_next_s`: further instances, `destroy_s`: a removal. None: not measured.
    """

    compute_slices: Count
    memory_slices: Count
    create_s: AboveZero | None = None
    create_wide_s: AboveZero | None = None
    create_next_s: AboveZero | None = None
    destroy_s: AboveZero | None = None
    source: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)

    def __post_init__(self) -> None:
        check_fields(self, "partition")
        if self.compute_slices > self.memory_slices:
            raise SettingError(
                "partition.compute_slices",
                self.compute_slices,
                f"at most memory_slices ({self.memory_slices})",
            )


class Extent(NamedTuple):
    """Compute and memory slices of an instance."""

    compute: int
    memory: int


def starts(one: Extent, chip: Partition) -> tuple[int, ...]:
    """Return the memory slices at which an instance may start: multiples of its own memory slices.

    An instance has memory and compute slices from the same index on; the last memory slice may lack
    its compute slice. For 7 and 8 slices this is the driver's list.

    >>> starts(Extent(2, 2), Partition(compute_slices=7, memory_slices=8))
    (0, 2, 4)

    Source: NVIDIA Multi-Instance GPU User Guide, "Supported MIG Profiles" and "Getting Started with
    MIG" (`nvidia-smi mig -lgipp`); NVML's `nvmlGpuInstancePlacement_t`.
    """
    return tuple(
        start
        for start in range(0, chip.memory_slices - one.memory + 1, one.memory)
        if start + one.compute <= chip.compute_slices
    )


def where_they_go(several: Sequence[Extent], chip: Partition) -> tuple[int, ...] | None:
    """Return non-overlapping starts, or None."""
    order = sorted(range(len(several)), key=lambda i: (-several[i].memory, -several[i].compute, i))
    taken = [False] * chip.memory_slices
    places = [-1] * len(several)

    def place(k: int) -> bool:
        if k == len(order):
            return True
        one = several[order[k]]
        # Equal instances differ in nothing: each starts behind the one before.
        least = places[order[k - 1]] + 1 if k and several[order[k - 1]] == one else 0
        for start in starts(one, chip):
            span = slice(start, start + one.memory)
            if start < least or any(taken[span]):
                continue
            taken[span] = [True] * one.memory
            places[order[k]] = start
            if place(k + 1):
                return True
            taken[span] = [False] * one.memory
        return False

    return tuple(places) if place(0) else None


def free_for(several: Sequence[Extent], more: Extent, chip: Partition) -> int:
    """Return how many more fit, wherever the others are."""
    count = 0
    while where_they_go([*several, *[more] * (count + 1)], chip) is not None:
        count += 1
    return count
