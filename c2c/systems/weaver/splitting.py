"""Cuts of a receiver's operators, which shorten a sender's waits."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Annotated, Final, Literal

import numpy as np
import numpy.typing as npt

from c2c.errors import SettingError
from c2c.ranges import AboveZero, Count, FromZero, In, check_fields, check_value

__all__ = [
    "Cut",
    "Limits",
    "Threshold",
    "ThresholdOf",
    "best_cut",
    "expected_stall",
    "expected_stalls",
    "guarded_cut",
    "printed_cut",
    "printed_stall",
    "stated_objective",
]

Values = npt.NDArray[np.float64]
ThresholdOf = Literal["operator", "layer", "iteration"]

MOST_SPLITS: Final = 100_000  # limit for Algorithm 1 as printed, which need not end


# A task of the sender arrives while the receiver runs one of its own operators, and starts when
# that operator ends. The probability to meet an operator is proportional to its time T, and the
# wait W is then uniform in [0, T]. The sender's attention at home takes K seconds, the receiver's N
# seconds. With `slack` K - N, the sender's layer is late by max(0, W - slack).
#
# The paper computes `printed_stall` (the sum over the numerator is missing in print) and states
# `stated_objective`. `expected_stall` is the mean lateness for a slack of any sign.
def printed_stall(ops: Sequence[float], slack: float) -> float:
    """Return the paper's estimate: sum max(T - slack, 0)^2 / (2 sum T).

    >>> printed_stall([8, 4, 2], 1) * 28
    59.0
    """
    t = _seconds(ops)
    return float((np.maximum(t - slack, 0.0) ** 2).sum() / (2 * t.sum()))


def expected_stall(ops: Sequence[float], slack: float) -> float:
    """Return the mean of max(0, W - slack); with slack < 0 every cut leaves at least -slack.

    >>> expected_stall([100], 0), expected_stall([50, 50], 0), expected_stall([100], -20)
    (50.0, 25.0, 70.0)
    """
    t = _seconds(ops)
    return float(_late(t, slack).sum() / t.sum())


def expected_stalls(ops: Sequence[float], slacks: Values) -> Values:
    """Return `expected_stall` for each slack, [slack] seconds."""
    t, count = np.unique(_seconds(ops), return_counts=True)
    result: Values = _late(t, slacks[:, None]) @ count / (t @ count)
    return result


def stated_objective(ops: Sequence[float], slack: float) -> float:
    """Return the mean of W if K < W + N, else 0.

    >>> stated_objective([8, 4, 2], 1) * 28, stated_objective([8], 2)
    (81.0, 3.75)
    """
    t = _seconds(ops)
    late = t[t > slack]  # with slack < 0 every wait is too long
    return float((late**2 - max(slack, 0.0) ** 2).sum() / (2 * t.sum()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds and costs of a cut.

    Attributes:
      least_s: shortest piece.
      most: most pieces, of all or each operator.
      split_s: of a split.
      poll_s: of the poll after a piece.
    """

    least_s: AboveZero = 20e-6
    most: Count | tuple[Count, ...] = 16
    split_s: FromZero = 3e-6
    poll_s: FromZero = 2e-6

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def added_s(self) -> float:
        """Seconds that a split adds, poll included."""
        return self.split_s + self.poll_s

    def most_of(self, t: Values) -> npt.NDArray[np.int64]:
        """Return each operator's most pieces, by its seconds."""
        if isinstance(self.most, tuple) and len(self.most) != len(t):
            raise SettingError("most", len(self.most), f"a number for each of {len(t)} operators")
        return np.maximum(1, np.minimum(self.most, t // self.least_s)).astype(np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """A cut: for each operator, in order, seconds of its pieces."""

    pieces: tuple[tuple[float, ...], ...]

    @property
    def lengths(self) -> tuple[float, ...]:
        """Seconds of all pieces, in program order."""
        return tuple(chain.from_iterable(self.pieces))

    @property
    def splits(self) -> int:
        """Number of splits: pieces less operators."""
        return sum(map(len, self.pieces)) - len(self.pieces)


@dataclass(frozen=True, slots=True, kw_only=True)
class Threshold:
    """Stall at which cutting stops.

    Attributes:
      seconds: the paper's is 5 % of the sender's mean iteration.
      of: bounded stall: operator (at the longest piece), layer or iteration.
      layers: layers of the sender's model.
    """

    seconds: Annotated[float, In("[0, inf]")]
    of: ThresholdOf = "layer"
    layers: Count = 1

    def __post_init__(self) -> None:
        check_fields(self, "threshold")

    def exceeded(self, mean_s: float, longest_s: float) -> bool:
        """Return whether the stall exceeds the threshold."""
        time_of = {"operator": longest_s, "layer": mean_s, "iteration": self.layers * mean_s}
        return time_of[self.of] > self.seconds


def printed_cut(ops: Sequence[float], slack: float, threshold: Threshold) -> Cut:
    """Return Algorithm 1's cut as printed, which halves the longest piece.

    Raises:
      SettingError: more than `MOST_SPLITS` splits.
    """
    return _halved(
        ops, threshold, lambda t: max(t - slack, 0.0) ** 2 / 2, lambda t, _: t > slack, 0.0
    )


def guarded_cut(
    ops: Sequence[float], slack: float, threshold: Threshold, limits: Limits | None = None
) -> Cut:
    """Return Algorithm 1's cut with guards: shortest piece, most pieces, cost.

    Stalls are `expected_stall`'s.
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

    Args:
      slack: K - N, seconds.
      weight: of a second of the cold model's step.

    Raises:
      SettingError: a negative weight, no layer, or other operators' limits.
    """
    check_value(weight, FromZero, "weight")
    check_value(layers, Count, "layers")
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
    times_s = (t + (count - 1) * added) / count
    return Cut(pieces=tuple((float(s),) * int(c) for s, c in zip(times_s, count, strict=True)))


def _halved(
    ops: Sequence[float],
    threshold: Threshold,
    late: Callable[[float], float],
    may: Callable[[float, int], bool],
    added_s: float,
) -> Cut:
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
                "threshold.seconds", threshold.seconds, "a stall that cuts can reach",
                f"{MOST_SPLITS:,} splits did not reach it; the guarded algorithm always ends.",
            )  # fmt: skip
        half = (t + added_s) / 2
        total += added_s
        whole += 2 * late(half) - late(t)
        heapq.heappush(heap, (-half, k))
        heapq.heappush(heap, (-half, k))
    for negative, k in heap:
        pieces[k].append(-negative)
    return Cut(pieces=tuple(tuple(sorted(piece, reverse=True)) for piece in pieces))


def _late(t: Values, slack: float | Values) -> Values:
    return np.where(slack >= 0, np.maximum(t - slack, 0.0) ** 2 / 2, t * (t / 2 - slack))


def _seconds(ops: Sequence[float]) -> Values:
    t = np.asarray(ops, dtype=np.float64)
    if t.ndim != 1 or not len(t) or not (np.isfinite(t) & (t > 0)).all():
        raise SettingError("operators", list(ops), "one or more numbers of seconds above 0")
    return t
