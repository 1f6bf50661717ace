"""Intervals of our values over readings."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from experiments.claims.classes import computed_in_full
from experiments.claims.compare import Result
from experiments.claims.load import Claim
from experiments.claims.nulls import Answered

__all__ = ["Interval", "intervals_beside", "public_interval"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """Lowest and highest of our values over readings, for each number."""

    printed: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]

    @property
    def is_inside(self) -> bool:
        """True if each printed number lies in its interval."""
        return self.holds(self.printed)

    @property
    def width(self) -> float:
        """The largest ratio of highest to lowest, or inf."""
        pairs = zip(self.low, self.high, strict=True)
        return max(high / low if low > 0 else math.inf for low, high in pairs)

    def holds(self, values: Sequence[float]) -> bool:
        """Return whether values lie in the interval, end by end."""
        ends = zip(self.low, values, self.high, strict=True)
        return all(low <= value <= high for low, value, high in ends)


def public_interval(claim: Claim, result: Result | None) -> Interval | None:
    """Return the interval of a result over its readings, or None."""
    if result is None or claim.system not in computed_in_full():
        return None
    printed = _ends(claim.value)
    intervals = [_ends(value) for value in (result.ours, *result.by_reading.values())]
    ours = [ends for ends in intervals if ends is not None]
    if printed is None or len(ours) < len(intervals) or any(len(e) != len(printed) for e in ours):
        return None
    by_end = list(zip(*ours, strict=True))
    return Interval(
        printed=printed, low=tuple(map(min, by_end)), high=tuple(map(max, by_end))
    )  # fmt: skip


def intervals_beside(rows: Sequence[Answered]) -> dict[str, Any]:
    """Return how many numbers are in our intervals, and by chance."""
    numbers = [r for r in rows if r.comparison is not None and r.comparison.ratio is not None]
    intervals: dict[str, tuple[str, Interval]] = {}
    for row in numbers:
        if (one := public_interval(row.claim, row.result)) is not None:
            intervals[row.claim.id] = (row.claim.unit, one)
    if not intervals:
        return {}
    by_chance = 0.0
    for name, (unit, one) in intervals.items():
        others = [
            other.printed for key, (other_unit, other) in intervals.items()
            if key != name and other_unit == unit and len(other.printed) == len(one.printed)
        ]  # fmt: skip
        by_chance += sum(map(one.holds, others)) / max(1, len(others))
    return {
        "numbers": len(intervals),
        "inside": sum(one.is_inside for _, one in intervals.values()),
        "by_chance": round(by_chance, 1),
        "outside": [name for name, (_, one) in intervals.items() if not one.is_inside],
    }


def _ends(value: Any) -> tuple[float, ...] | None:
    values = value if isinstance(value, list | tuple) else [value]
    if not all(isinstance(v, int | float) and not isinstance(v, bool) for v in values):
        return None
    return tuple(map(float, values))
