"""Cuts of a receiver's operators, so that a sender's attention does not wait long for them.

A task of the sender arrives while the receiver runs one of its own operators, and is taken when
that operator ends. An operator of T seconds is met in proportion to T, and the wait W is uniform in
[0, T] then. The sender attends to its own sequences for K seconds; the receiver's attention takes N
seconds. `slack` is K - N: the sender's layer is late by max(0, W - slack).

The paper computes `printed_stall` (the sum over the numerator is missing in print), and states
`stated_objective`. `expected_stall` is the mean of max(0, W - slack), whatever the slack's sign.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Final, Literal, get_args

import numpy as np
import numpy.typing as npt

from c2c.errors import SettingError, unknown_name

__all__ = [
    "Cut",
    "Limits",
    "Threshold",
    "ThresholdOf",
    "best_cut",
    "expected_stall",
    "guarded_cut",
    "printed_cut",
    "printed_stall",
    "stated_objective",
]

Values = npt.NDArray[np.float64]
ThresholdOf = Literal["operator", "layer", "iteration"]

MOST_SPLITS: Final = 100_000  # of Algorithm 1 as printed, which need not end


def printed_stall(ops: Sequence[float], slack: float) -> float:
    """Return the paper's estimate: sum max(T - slack, 0)^2 / (2 sum T).

    >>> printed_stall([8, 4, 2], 1) * 28
    59.0
    """
    t = _seconds(ops)
    return float((np.maximum(t - slack, 0.0) ** 2).sum() / (2 * t.sum()))


def expected_stall(ops: Sequence[float], slack: float) -> float:
    """Return the mean of max(0, W - slack); with slack < 0 no cut takes -slack away.

    >>> expected_stall([100], 0), expected_stall([50, 50], 0), expected_stall([100], -20)
    (50.0, 25.0, 70.0)
    """
    t = _seconds(ops)
    return float(_late(t, slack).sum() / t.sum())


def stated_objective(ops: Sequence[float], slack: float) -> float:
    """Return the mean of W where K < W + N, and 0 elsewhere.

    >>> stated_objective([8, 4, 2], 1) * 28, stated_objective([8], 2)
    (81.0, 3.75)
    """
    t = _seconds(ops)
    late = t[t > slack]  # with slack < 0 every wait is too long
    return float((late**2 - max(slack, 0.0) ** 2).sum() / (2 * t.sum()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds of a cut, and its cost.

    Attributes:
      least_s: no piece is made that is shorter.
      most: pieces of an operator; one number for each where they differ, as products are cut at
        whole tiles.
      split_s: that a split adds to an operator: a launch, and what a smaller product loses.
      poll_s: of the poll that follows the piece more.
    """

    least_s: float = 20e-6
    most: int | tuple[int, ...] = 16
    split_s: float = 3e-6
    poll_s: float = 2e-6

    def __post_init__(self) -> None:
        if not 0 < self.least_s < float("inf"):
            raise SettingError("least_s", self.least_s, "seconds above 0")
        for name in ("split_s", "poll_s"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise SettingError(name, getattr(self, name), "seconds from 0")
        if np.min(self.most, initial=1) < 1:
            raise SettingError("most", self.most, "whole numbers above 0")

    @property
    def added_s(self) -> float:
        """Seconds that a split adds in all."""
        return self.split_s + self.poll_s

    def most_of(self, t: Values) -> npt.NDArray[np.int64]:
        """Return the most pieces of each operator.

        Raises:
          SettingError: other numbers of operators.
        """
        if isinstance(self.most, tuple) and len(self.most) != len(t):
            raise SettingError("most", len(self.most), f"a number for each of {len(t)} operators")
        return np.maximum(1, np.minimum(self.most, t // self.least_s)).astype(np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """Operators in program order, each with the seconds of its pieces."""

    pieces: tuple[tuple[float, ...], ...]

    @property
    def lengths(self) -> tuple[float, ...]:
        """Seconds of all pieces, in program order."""
        return tuple(chain.from_iterable(self.pieces))

    @property
    def splits(self) -> int:
        """Pieces more than operators."""
        return sum(map(len, self.pieces)) - len(self.pieces)


@dataclass(frozen=True, slots=True, kw_only=True)
class Threshold:
    """Stall below which nothing more is cut; the paper does not say of what it is the stall.

    Attributes:
      seconds: the threshold; the paper's is 5 % of the sender's mean iteration.
      of: operator: of a task that meets the longest piece; layer: of a layer in the mean;
        iteration: of all layers of a step.
      layers: of the sender's model.
    """

    seconds: float
    of: ThresholdOf = "layer"
    layers: int = 1

    def __post_init__(self) -> None:
        if not self.seconds >= 0:
            raise SettingError("threshold.seconds", self.seconds, "seconds from 0")
        if self.of not in get_args(ThresholdOf):
            raise unknown_name("threshold.of", self.of, get_args(ThresholdOf))
        if self.layers < 1:
            raise SettingError("threshold.layers", self.layers, "a whole number above 0")

    def exceeded(self, mean_s: float, longest_s: float) -> bool:
        """Return whether stalls are too long.

        Args:
          mean_s: of a layer.
          longest_s: of a layer whose task meets the longest piece, in the mean.
        """
        found = {"operator": longest_s, "layer": mean_s, "iteration": self.layers * mean_s}
        return found[self.of] > self.seconds


def printed_cut(ops: Sequence[float], slack: float, threshold: Threshold) -> Cut:
    """Return Algorithm 1 as its listing has it: the longest piece is halved, both halves go back.

    Raises:
      SettingError: it does not end, as with slack <= 0 and a threshold that no cut reaches.
    """
    return _halved(
        ops, threshold, lambda t: max(t - slack, 0.0) ** 2 / 2, lambda t, _: t > slack, 0.0
    )


def guarded_cut(
    ops: Sequence[float], slack: float, threshold: Threshold, limits: Limits | None = None
) -> Cut:
    """Return Algorithm 1 with guards: least piece, most pieces, the cost of a split, any slack.

    It weighs by `expected_stall`, and stops where halving the longest piece does not lessen it.
    """
    limits = limits or Limits()
    most = limits.most_of(_seconds(ops)).tolist()
    count = [1] * len(most)
    added = limits.added_s

    def late(t: float) -> float:
        return max(t - slack, 0.0) ** 2 / 2 if slack >= 0 else t * (t / 2 - slack)

    def may(t: float, k: int) -> bool:
        half = (t + added) / 2
        if t <= slack or t < 2 * limits.least_s or count[k] >= most[k]:
            return False
        if 2 * late(half) >= late(t):
            return False
        count[k] += 1
        return True

    return _halved(ops, threshold, late, may, added)


def best_cut(
    ops: Sequence[float],
    slack: float,
    *,
    layers: int,
    weight: float,
    limits: Limits | None = None,
) -> Cut:
    """Return the cut with the least hot TPOT + weight x cold TPOT (ours).

    The hot model's step grows by layers x `expected_stall`, the cold one's by what splits add.
    For an operator in n pieces equal ones are best, as lateness is convex in a piece's length, and
    the lateness is convex in n. All splits cost alike, so the receiver's step depends on their
    number only: for each number the splits that take most are the best, and one of these is least.

    Args:
      ops: seconds of the receiver's operators.
      slack: K - N, seconds.
      layers: of the hot model.
      weight: of a second of the cold model's step.
      limits: of pieces.

    Raises:
      SettingError: a weight below 0, no layer, or limits of other operators.
    """
    if not 0 <= weight < float("inf"):
        raise SettingError("weight", weight, "a finite number from 0")
    if layers < 1:
        raise SettingError("layers", layers, "a whole number above 0")
    limits = limits or Limits()
    t = _seconds(ops)
    most, added = limits.most_of(t), limits.added_s
    n = np.arange(1, int(most.max()) + 1)
    late = n * _late((t[:, None] + (n - 1) * added) / n, slack)  # [operator, pieces]
    more = np.where(n[1:] <= most[:, None], np.diff(late, axis=1), np.inf)
    order = np.argsort(more, axis=None, kind="stable")[: int((most - 1).sum())]
    splits = np.arange(len(order) + 1)
    total = t.sum() + splits * added
    whole = late[:, 0].sum() + np.concatenate([[0.0], np.cumsum(more.ravel()[order])])
    taken = order[: int(np.argmin(layers * whole / total + weight * total))]
    count = 1 + np.bincount(taken // max(1, more.shape[1]), minlength=len(t))
    each = (t + (count - 1) * added) / count
    return Cut(pieces=tuple((float(s),) * int(c) for s, c in zip(each, count, strict=True)))


def _halved(
    ops: Sequence[float],
    threshold: Threshold,
    late: Callable[[float], float],
    may: Callable[[float, int], bool],
    added_s: float,
) -> Cut:
    """Halve the longest piece while the stall is too long; those that may not be stay whole.

    Args:
      ops: seconds of operators.
      threshold: of the stall.
      late: lateness of a piece, times its seconds.
      may: whether a piece of so many seconds of an operator is halved.
      added_s: by a split.
    """
    heap = [(-t, k) for k, t in enumerate(_seconds(ops).tolist())]
    pieces: list[list[float]] = [[] for _ in heap]
    total, whole, splits = -sum(t for t, _ in heap), sum(late(-t) for t, _ in heap), 0
    heapq.heapify(heap)
    while heap:
        t, k = -heap[0][0], heap[0][1]
        if not threshold.exceeded(whole / total, late(t) / t):
            break
        heapq.heappop(heap)
        if not may(t, k):
            pieces[k].append(t)
            continue
        splits += 1
        if splits > MOST_SPLITS:
            raise SettingError(
                "threshold.seconds", threshold.seconds, "a stall that cuts reach",
                f"{MOST_SPLITS:,} splits did not; the guarded algorithm ends.",
            )  # fmt: skip
        half = (t + added_s) / 2
        total += added_s
        whole += 2 * late(half) - late(t)
        heapq.heappush(heap, (-half, k))
        heapq.heappush(heap, (-half, k))
    for negative, k in heap:
        pieces[k].append(-negative)
    return Cut(pieces=tuple(tuple(sorted(each, reverse=True)) for each in pieces))


def _late(t: Values, slack: float) -> Values:
    """Return the lateness of pieces times their seconds: the integral of max(0, w - slack)."""
    if slack >= 0:
        return np.maximum(t - slack, 0.0) ** 2 / 2
    return t * (t / 2 - slack)


def _seconds(ops: Sequence[float]) -> Values:
    t = np.asarray(ops, dtype=np.float64)
    if t.ndim != 1 or not len(t) or not (np.isfinite(t) & (t > 0)).all():
        raise SettingError("operators", list(ops), "one or more numbers of seconds above 0")
    return t
