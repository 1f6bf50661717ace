"""Timing of work on a device from the host's clock."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

# A repetition enqueues a row of launches and waits once, so starts are hidden behind the launch
# before. In a row this long the first start and the wait are below a percent.
ROW_S = 0.02
MOST_IN_A_ROW = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """Seconds of a launch in each repetition of `in_a_row` launches."""

    seconds: tuple[float, ...]
    in_a_row: int

    @property
    def median_s(self) -> float:
        """Median over the repetitions."""
        return statistics.median(self.seconds)

    @property
    def spread(self) -> float:
        """Distance of quartiles as a share of the median; NaN for one repetition."""
        if len(self.seconds) < 2:
            return math.nan
        low, _, high = statistics.quantiles(self.seconds, n=4, method="inclusive")
        return (high - low) / self.median_s

    def columns(self) -> dict[str, float | int]:
        """Return a result's columns."""
        return {
            "time_s": self.median_s,
            "best_s": min(self.seconds),
            "worst_s": max(self.seconds),
            "spread": self.spread,
            "repetitions": len(self.seconds),
            "in_a_row": self.in_a_row,
        }


def time_launches(
    launch: Callable[[int], Any], *, target_s: float, repetitions: tuple[int, int]
) -> Times:
    """Time `launch`, which returns the arrays to wait for."""
    wait(launch(0))
    start = time.perf_counter()
    wait(launch(1))
    once = max(time.perf_counter() - start, 1e-9)
    in_a_row = max(1, min(MOST_IN_A_ROW, math.ceil(ROW_S / once))) if target_s else 1
    fewest, most = repetitions
    count = max(fewest, min(most, math.floor(target_s / (once * in_a_row))))
    seconds, number = [], 2
    for _ in range(count):
        start = time.perf_counter()
        for _ in range(in_a_row):
            last = launch(number)
            number += 1
        wait(last)
        seconds.append((time.perf_counter() - start) / in_a_row)
    return Times(seconds=tuple(seconds), in_a_row=in_a_row)


def wait(arrays: Any) -> None:
    """Wait for all arrays of a tree."""
    import jax

    until_ready: Any = jax.block_until_ready  # untyped
    until_ready(arrays)
