"""Owner of an address at a point of the trace."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence

from c2c.systems.program import AllocationId, Event

__all__ = ["Owners", "first_match"]


class Owners:
    """Index of the latest allocation by address; look-up in O(log n)."""

    def __init__(self, numbers: dict[AllocationId, int]) -> None:
        self._numbers = numbers
        # disjoint pieces [start, end) by start, with their allocations' numbers
        self._starts: list[int] = []
        self._ends: list[int] = []
        self._who: list[int] = []
        self._base: dict[int, int] = {}
        self._end: dict[int, int] = {}
        self._live_ends: dict[int, int] = {}  # end of a live allocation -> its number

    def take(self, event: Event) -> None:
        """Add the trace's next event."""
        number = self._numbers[event.allocation]
        if event.is_free:
            base = self._base[number]
            self._live_ends.pop(self._end.pop(number), None)
            self._base[number] = -1 - base  # remembered as freed
            return
        self._own(event.address, event.address + event.nbytes, number)
        self._base[number] = event.address
        self._end[number] = event.address + event.nbytes
        self._live_ends[event.address + event.nbytes] = number

    def latest(self, address: int) -> tuple[int, int] | None:
        """Return (allocation, offset) of the latest allocation at an address, if any."""
        k = bisect_right(self._starts, address) - 1
        if k < 0 or address >= self._ends[k]:
            return None
        base = self._base[self._who[k]]
        return self._who[k], address - (base if base >= 0 else -1 - base)

    def live(self, address: int) -> tuple[tuple[int, int], ...]:
        """Return (allocation, offset) of live allocations at an address."""
        result: tuple[tuple[int, int], ...] = ()
        k = bisect_right(self._starts, address) - 1
        if k >= 0 and address < self._ends[k]:
            base = self._base[self._who[k]]
            if base >= 0:
                result = ((self._who[k], address - base),)
        ending = self._live_ends.get(address)
        if ending is not None:
            result = (*result, (ending, address - self._base[ending]))
        return result

    def _own(self, start: int, end: int, number: int) -> None:
        low = bisect_left(self._starts, start)
        if low and self._ends[low - 1] > start:  # the piece before reaches into the new one
            low -= 1
        high = bisect_left(self._starts, end)
        pieces = [(start, end, number)]
        if low < high:
            if self._starts[low] < start:
                pieces.insert(0, (self._starts[low], start, self._who[low]))
            if self._ends[high - 1] > end:
                pieces.append((end, self._ends[high - 1], self._who[high - 1]))
        for column, values in zip(
            (self._starts, self._ends, self._who), zip(*pieces, strict=True), strict=True
        ):
            column[low:high] = list(values)


def first_match(events: Sequence[Event], address: int) -> int | None:
    """Return the first allocation ever at an address (Fig. 6, wrong)."""
    allocations = (e for e in events if not e.is_free)
    for number, event in enumerate(allocations):
        if event.address <= address < event.address + event.nbytes:
            return number
    return None
