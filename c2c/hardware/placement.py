"""Placement of MIG instances on a chip, by the vendor's rule for their possible starts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from c2c.errors import SettingError
from c2c.ranges import AboveZero, Count, check_fields

__all__ = ["Extent", "Partition", "free_for", "starts", "where_they_go"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """Numbers of compute and memory slices of a chip, and the seconds to change its instances.

    `create_s` is the time of the first instance if it has one compute slice, `create_wide_s` if it
    has several, `create_next_s` of each further instance, `destroy_s` of any removal. None: not
    measured.
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
    """Numbers of compute and memory slices of an instance."""

    compute: int
    memory: int


def starts(one: Extent, chip: Partition) -> tuple[int, ...]:
    """Return the memory slices at which an instance may start.

    A chip has a row of memory slices, and a compute slice for each of them except perhaps the last.
    An instance has adjacent ones of both from the same index on, a multiple of its memory slices.
    On a chip of 7 compute and 8 memory slices this gives exactly the driver's list.

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
    """Return a start for each instance so that none overlap; None if they do not fit.

    Large instances are placed first, so the choice does not depend on the order of `several`.
    """
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
    """Return the number of instances like `more` that still fit, wherever the others are placed."""
    count = 0
    while where_they_go([*several, *[more] * (count + 1)], chip) is not None:
        count += 1
    return count
