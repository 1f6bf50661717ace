"""Bisection for the largest load or smallest fleet within targets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import log

from experiments.answers.quantity import Quantity, between

__all__ = ["Bracket", "bracket_of", "next_values"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bracket:
    """Hardest value within targets, and easiest miss, or None."""

    met: float | None
    missed: float | None


def bracket_of(quantity: Quantity, tried: Mapping[float, bool]) -> Bracket:
    """Return the bracket of the values tried so far."""
    order = sorted(tried, reverse=not quantity.more_is_harder)
    missed = next((value for value in order if not tried[value]), None)
    easier = order if missed is None else order[: order.index(missed)]
    return Bracket(met=easier[-1] if easier else None, missed=missed)


def next_values(
    quantity: Quantity, tried: Mapping[float, bool], tolerance: float, count: int
) -> list[float]:
    """Return at most `count` values to try; none if narrow."""
    if not tried:
        return [quantity.start]
    bracket = bracket_of(quantity, tried)
    if bracket.met is None or bracket.missed is None:
        edge = bracket.missed if bracket.met is None else bracket.met
        assert edge is not None
        up = quantity.more_is_harder == (bracket.met is not None)
        far = [edge * 2.0**k if up else edge / 2.0**k for k in range(1, count + 1)]
        if quantity.is_whole:
            far = [float(int(value)) for value in far]
        inside = [min(max(value, quantity.lowest), quantity.highest) for value in far]
        return [value for value in dict.fromkeys(inside) if value not in tried]
    low, high = sorted((bracket.met, bracket.missed))
    if not quantity.is_whole and log(high / low) <= tolerance:
        return []
    return between(low, high, count, is_whole=quantity.is_whole)
