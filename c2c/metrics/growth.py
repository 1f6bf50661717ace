"""Test for a queue that grew until the last arrival."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

__all__ = ["FEWEST", "Growth", "growth_of"]

Floats = npt.NDArray[np.float64]

LEFT = 0.1  # growth starts after the queue was last at most this share of its final length
HALF_WAY = 0.8  # most of the final length at half time; linear growth has about half
LONGEST_BURST = 0.25  # share of the time between first and last arrival
CHANCE = 2.0  # standard deviations of the number of arrivals, sqrt(arrivals) each
FEWEST = 20  # requests in a queue that counts as grown


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """A queue that grew until the last arrival.

    Attributes:
      since_s, until_s: start and end of the growth.
      arrived: arrivals meanwhile.
      waiting: length at the end.
    """

    since_s: float
    until_s: float
    arrived: int
    waiting: int


def growth_of(
    arrival_s: Floats, left_s: Floats, missed: npt.NDArray[np.bool_], span: tuple[float, float]
) -> Growth | None:
    """Return the growth until the last arrival, if any."""
    first_s, last_s = span
    waiting = int(np.count_nonzero(left_s > last_s))
    if waiting < FEWEST or last_s <= first_s:
        return None
    order = np.argsort(arrival_s, kind="stable")
    arrived = arrival_s[order]
    gone = np.searchsorted(np.sort(left_s), arrived, side="right")
    queue = np.arange(1, len(arrived) + 1) - gone  # as each request arrived
    low = np.flatnonzero(queue <= LEFT * waiting)
    start = int(low[-1]) + 1 if len(low) else 0
    count = len(arrived) - start
    if count == 0:
        return None
    since_s = float(arrived[start])
    if last_s - since_s < LONGEST_BURST * (last_s - first_s):
        return None
    if waiting < CHANCE * count**0.5 or np.mean(missed[order][-max(1, count // 4) :]) <= 0.5:
        return None
    middle = queue[start:][
        np.abs(arrived[start:] - (since_s + last_s) / 2) < (last_s - since_s) / 10
    ]
    if len(middle) and np.median(middle) > HALF_WAY * waiting:
        return None
    return Growth(since_s=since_s, until_s=last_s, arrived=count, waiting=waiting)
