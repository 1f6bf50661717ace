"""Mean over seeds with its confidence interval."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

__all__ = ["CONFIDENCE", "Interval", "interval_of"]

CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """Mean, and half its two-sided interval, or None."""

    mean: float
    half: float | None


def interval_of(values: Sequence[float]) -> Interval:
    """Return the mean of independent values with Student's t interval.

    >>> interval_of([1.0, 2.0, 3.0])
    Interval(mean=2.0, half=2.484...)
    """
    if len(values) < 2:
        return Interval(mean=fmean(values), half=None)
    from scipy.special import stdtrit

    quantile = float(stdtrit(len(values) - 1, (1.0 + CONFIDENCE) / 2.0))
    return Interval(mean=fmean(values), half=quantile * stdev(values) / len(values) ** 0.5)
