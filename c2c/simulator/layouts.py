"""Times at which layouts of chips change and the new ones are there, outside the loop."""

from __future__ import annotations

import math
from dataclasses import dataclass

from c2c.serving import Prepared
from c2c.serving.port import ChangeLayout, LayoutChanged

__all__ = ["LayoutRow", "LayoutSchedule"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutRow:
    """A change of a chip's layout as it went.

    Attributes:
      begun_s: when the slices that go were given nothing more.
      left_s: when the last of them held nothing any more.
      there_s: when the new layout was there; inf: the run ended before.
    """

    chip: int
    layout: int  # in order of time, the first one is 0
    begun_s: float
    left_s: float = math.inf
    there_s: float = math.inf


class LayoutSchedule:
    """What a run's settings say of layouts, as events of the serving loop's port.

    A chip begins a change when the one before it is done.
    """

    def __init__(self, prepared: Prepared) -> None:
        self._changes = prepared.layouts.changes
        self._size = len(prepared.layouts.slices)
        self._next = [0] * prepared.setup.chips
        self._rows: list[LayoutRow] = []
        self._under_way: dict[int, int] = {}  # chip: its row

    @property
    def next_s(self) -> float:
        """When the next event is due; inf: there is none, or all wait for slices to leave."""
        return min(map(self._due_s, range(len(self._next))), default=math.inf)

    def next_event(self) -> ChangeLayout | LayoutChanged:
        """Take the event that is due next, the lowest chip's of several."""
        c = min(range(len(self._next)), key=self._due_s)
        at_s, k = self._due_s(c), self._next[c]
        if c in self._under_way:
            del self._under_way[c]
            self._next[c] += 1
            return LayoutChanged(at_s=at_s, chip=c)
        change = self._changes[k]
        self._under_way[c] = len(self._rows)
        self._rows.append(LayoutRow(chip=c, layout=k + 1, begun_s=at_s))
        return ChangeLayout(
            at_s=at_s,
            chip=c,
            leaves=tuple(c * self._size + d for d in change.leaves),
            comes=tuple(c * self._size + d for d in change.comes),
            drain=change.setting.drain,
        )

    def left(self, c: int, now_s: float) -> None:
        """The slices of chip `c` that go hold nothing any more."""
        at = self._under_way[c]
        row = self._rows[at]
        there_s = now_s + self._changes[row.layout - 1].seconds
        self._rows[at] = LayoutRow(
            chip=c, layout=row.layout, begun_s=row.begun_s, left_s=now_s, there_s=there_s
        )

    def waits(self, c: int) -> bool:
        """Return whether slices of chip `c` have still to leave."""
        return c in self._under_way and self._rows[self._under_way[c]].left_s == math.inf

    @property
    def rows(self) -> tuple[LayoutRow, ...]:
        """The changes so far, in order of their begin."""
        return tuple(self._rows)

    def _due_s(self, c: int) -> float:
        if c in self._under_way:
            return self._rows[self._under_way[c]].there_s
        k = self._next[c]
        if k == len(self._changes):
            return math.inf
        setting = self._changes[k].setting
        before_s = max((r.there_s for r in self._rows if r.chip == c), default=0.0)
        return max(setting.at_s + c * setting.stagger_s, before_s)
