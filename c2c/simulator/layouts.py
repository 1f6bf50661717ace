"""Schedule of layout changes of chips, outside the loop."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from c2c.serving import Change, Prepared
from c2c.serving.port import ChangeLayout, LayoutChanged
from c2c.simulator.recuts import Estimate, Recuts

__all__ = ["LayoutRow", "LayoutSchedule"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutRow:
    """A change of a chip's layout, as it occurred.

    Attributes:
      begun_s: time from which leaving slices got no new requests.
      left_s: time at which the last of them was empty.
      there_s: time at which the new layout was in force; inf: the run ended before.
    """

    chip: int
    change: Change
    begun_s: float
    left_s: float = math.inf
    there_s: float = math.inf


class LayoutSchedule:
    """Layout changes from a run's settings or policy, as events of the loop's port.

    A chip begins a change after its previous one. A change by the policy proceeds chip after chip.

    Args:
      prepared: prepared setup of the run.
      estimate: estimate for the policy's choice; None: the policy is not called.
    """

    def __init__(self, prepared: Prepared, estimate: Estimate | None = None) -> None:
        self._changes = list(prepared.layouts.changes)
        self._size = len(prepared.layouts.slices)
        self._next = [0] * prepared.setup.chips
        self._rows: list[LayoutRow] = []
        self._under_way: dict[int, int] = {}  # chip: its row
        self._recuts = Recuts(prepared, estimate) if estimate and prepared.layouts.choices else None

    @property
    def next_s(self) -> float:
        """Time of the next event or look; inf: none, or all wait for slices to leave."""
        return min(self.event_s, self.look_s)

    @property
    def event_s(self) -> float:
        """Time of the next event."""
        return min(map(self._due_s, range(len(self._next))), default=math.inf)

    @property
    def look_s(self) -> float:
        """Time of the policy's next look at the requests; inf: while layouts change, or never."""
        if self._recuts is None or min(self._next) < len(self._changes):
            return math.inf
        return self._recuts.look_s

    def look(self, seen: Any, now_s: float) -> None:
        """Call the policy with the requests so far, see `Recuts.look`."""
        if self._recuts is not None and (change := self._recuts.look(seen, now_s)) is not None:
            self._changes.append(change)

    @property
    def reads_back(self) -> int:
        """Number of most recent requests that the policy reads."""
        return 0 if self._recuts is None else self._recuts.reads_back

    def next_event(self) -> ChangeLayout | LayoutChanged:
        """Take the next due event, of several the lowest chip's."""
        c = min(range(len(self._next)), key=self._due_s)
        at_s, k = self._due_s(c), self._next[c]
        if c in self._under_way:
            del self._under_way[c]
            self._next[c] += 1
            if self._recuts is not None and min(self._next) == len(self._changes):
                self._recuts.begin(at_s)
            return LayoutChanged(at_s=at_s, chip=c)
        change = self._changes[k]
        self._under_way[c] = len(self._rows)
        self._rows.append(LayoutRow(chip=c, change=change, begun_s=at_s))
        return ChangeLayout(
            at_s=at_s,
            chip=c,
            leaves=tuple(c * self._size + d for d in change.leaves),
            comes=tuple(c * self._size + d for d in change.comes),
            drain=change.setting.drain,
        )

    def left(self, c: int, now_s: float) -> None:
        """Record that the leaving slices of chip `c` are empty."""
        at = self._under_way[c]
        row = self._rows[at]
        self._rows[at] = replace(row, left_s=now_s, there_s=now_s + row.change.seconds)

    def waits(self, c: int) -> bool:
        """Return True if slices of chip `c` have still to leave."""
        return c in self._under_way and self._rows[self._under_way[c]].left_s == math.inf

    @property
    def rows(self) -> tuple[LayoutRow, ...]:
        """Changes so far, in order of their begin."""
        return tuple(self._rows)

    def _due_s(self, c: int) -> float:
        if c in self._under_way:
            return self._rows[self._under_way[c]].there_s
        k = self._next[c]
        if k == len(self._changes):
            return math.inf
        before = {c}
        if self._recuts is not None and c > 0:
            if self._next[c - 1] <= k:
                return math.inf
            before.add(c - 1)
        setting = self._changes[k].setting
        before_s = max((r.there_s for r in self._rows if r.chip in before), default=0.0)
        return max(setting.at_s + c * setting.stagger_s, before_s)
