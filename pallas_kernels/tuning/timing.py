"""Times of several launches, measured in turns so that what drifts hits all alike."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

ROW_S = 0.01
"""A row of launches takes about so long: its one wait is then a fraction of a percent."""

_MOST_IN_A_ROW = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Seconds of one launch, over several rows of launches; or why there are none."""

    median_s: float | None
    spread: float = 0.0  # interquartile range over the median
    repeats: int = 0
    error: str = ""


def describe(error: Exception) -> str:
    """Return an error's type and message on one line of bounded length."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}"[:400]


def interleaved[Name: Hashable](
    launches: Mapping[Name, Callable[[int], Any]],
    *,
    repeats: int,
    seed: int = 0,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[Name, Timing]:
    """Time launches in `repeats` rounds; in each every one has a turn, in a random order.

    A turn is a row of launches without a wait between them, so that the device never idles. One
    that raises is left out from then on and reported; the others go on.

    Args:
      launches: by name; a function of the launch's number that starts work and returns arrays.
      repeats: rounds that count, after a warm-up of two launches each.
      seed: of the orders.
      clock: seconds; tests put their own here.

    Raises:
      ValueError: `repeats` is below 1.
    """
    import jax

    wait: Callable[[Any], Any] = jax.block_until_ready
    if repeats < 1:
        raise ValueError(f"repeats={repeats}: expected a number above 0")
    seconds: dict[Name, list[float]] = {name: [] for name in launches}
    numbers = dict.fromkeys(launches, 0)
    row: dict[Name, int] = {}
    errors: dict[Name, str] = {}

    def turn(name: Name, length: int) -> float:
        start, first = clock(), numbers[name]
        numbers[name] += length
        for number in range(first, first + length):
            out = launches[name](number)  # the one before is freed when it is done
        wait(out)
        return clock() - start

    def guarded(name: Name, length: int) -> float | None:
        try:
            return turn(name, length)
        except Exception as error:  # noqa: BLE001 - recorded; one failure must not end the others
            errors[name] = describe(error)
            return None

    for name in launches:
        if guarded(name, 1) is not None and (once := guarded(name, 1)) is not None:
            row[name] = max(1, min(_MOST_IN_A_ROW, math.ceil(ROW_S / max(once, 1e-9))))
    rng = np.random.default_rng(seed)
    for _ in range(repeats):
        left = [name for name in launches if name not in errors]
        for index in rng.permutation(len(left)):
            name = left[index]
            if (taken := guarded(name, row[name])) is not None:
                seconds[name].append(taken / row[name])
    return {
        name: Timing(median_s=None, error=errors[name])
        if name in errors
        else _summary(seconds[name])
        for name in launches
    }


def _summary(seconds: list[float]) -> Timing:
    low, median, high = np.percentile(seconds, (25, 50, 75))
    return Timing(median_s=float(median), spread=float((high - low) / median), repeats=len(seconds))
