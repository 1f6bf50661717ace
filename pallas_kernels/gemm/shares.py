"""Shares of matrices to keep in device memory within a budget.

Every GEMM's time falls with the columns that need not cross the link, until another resource is
the slowest; further bytes save nothing. So bytes go to the largest saving: the greedy rule, which
is optimal for times that are convex in the bytes. NumPy only.

Source: DAK (2026), the ratio of an operation's weights that stays in device memory.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pallas_kernels.gemm.config import Config
from pallas_kernels.gemm.heuristics import choice
from pallas_kernels.gemm.machine import Machine
from pallas_kernels.gemm.prediction import plans, predict, reachable
from pallas_kernels.gemm.schedule import counts
from pallas_kernels.gemm.specs import Gemm

_ALPHAS = 9  # of a launch that are tried at each share


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """A GEMM over its own matrix, run `times` times in the workload to optimise.

    A projection of L layers is one operation with `copies` L: matrices with equal shares.
    """

    gemm: Gemm
    copies: int = 1
    times: float = 1.0  # of each copy
    config: Config | None = None  # default: `choice`'s


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """Share of an operation's matrix that stays in device memory."""

    columns: int  # the first ones, of every copy
    nbytes: int  # of all copies
    time_s: float  # predicted, of all copies and times


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """Rising numbers of an operation's bytes in device memory, and its time with each."""

    nbytes: Any
    time_s: Any


def best_shares(
    operations: Sequence[Operation], budget_bytes: float, machine: Machine
) -> tuple[Share, ...]:
    """Return the shares with the smallest predicted time within a budget of device memory.

    Args:
      operations: GEMMs of the workload; all experts of one have equal shares.
      budget_bytes: device memory for all operations together.
      machine: rates.

    Raises:
      ValueError: the budget is below zero.
    """
    if not budget_bytes >= 0:
        raise ValueError(f"budget_bytes={budget_bytes!r}: expected a number from 0 up")
    known: dict[Operation, tuple[Any, Curve]] = {one: _curve(one, machine) for one in operations}
    curves = [known[one] for one in operations]
    taken = allocate([curve for _, curve in curves], budget_bytes)
    return tuple(
        Share(
            columns=int(columns[at]),
            nbytes=int(curve.nbytes[at]),
            time_s=float(curve.time_s[at]),
        )
        for (columns, curve), at in zip(curves, taken, strict=True)
    )


def allocate(curves: Sequence[Curve], budget_bytes: float) -> list[int]:
    """Return the index into each curve with the smallest sum of times within the budget.

    Steps along the curves' lower convex hulls are taken in the order of what a byte saves; of one
    that does not fit, as much as does. Exact for convex curves of equal steps; elsewhere no further
    from the best than one step of a hull saves.
    """
    steps: list[tuple[float, int, int, int]] = []
    for number, curve in enumerate(curves):
        hull, least = _hull(curve), np.inf
        for low, high in itertools.pairwise(hull):
            bytes_more = curve.nbytes[high] - curve.nbytes[low]
            # a byte saves no more than one before it, however differences are rounded
            least = min(least, (curve.time_s[low] - curve.time_s[high]) / bytes_more)
            steps.append((-least, number, low, high))
    taken, left = [0] * len(curves), float(budget_bytes) - sum(c.nbytes[0] for c in curves)
    for _, number, low, high in sorted(steps):
        curve = curves[number]
        if taken[number] != low:  # the step before did not fit
            continue
        within = np.flatnonzero(curve.nbytes[low : high + 1] - curve.nbytes[low] <= left) + low
        best = int(within[np.argmin(curve.time_s[within])])
        left -= curve.nbytes[best] - curve.nbytes[low]
        taken[number] = best
    return taken


def _hull(curve: Curve) -> list[int]:
    """Return the indices of the falling part of a curve's lower convex hull."""
    hull: list[int] = []
    for at in range(int(np.argmin(curve.time_s)) + 1):
        while len(hull) > 1 and _above(curve, hull[-2], hull[-1], at):
            hull.pop()
        hull.append(at)
    return hull


def _above(curve: Curve, first: int, middle: int, last: int) -> bool:
    """Return True if the middle of three points is on or above the line through the others."""
    x, y = curve.nbytes, curve.time_s
    rise = (y[last] - y[first]) * (x[middle] - x[first])
    return bool((y[middle] - y[first]) * (x[last] - x[first]) >= rise)


def _curve(operation: Operation, machine: Machine) -> tuple[Any, Curve]:
    """Return the columns for every number of strips, with their bytes and times."""
    gemm = operation.gemm
    config = operation.config or choice(gemm, machine).config
    strips = np.arange(counts(config, gemm).strips + 1)
    columns = np.minimum(strips * config.tn, gemm.n)
    alphas = reachable(np.linspace(0, 1, _ALPHAS), config, gemm)[:, None]
    tried = predict(gemm, config, plans(gemm, config, alphas, resident_strips=strips), machine)
    nbytes = columns * gemm.k * gemm.w_bits // 8 * (gemm.experts or 1)
    time_s = np.broadcast_to(tried.time_s, (len(alphas), len(strips))).min(0)
    return columns, Curve(
        nbytes=nbytes * operation.copies,
        time_s=time_s * operation.copies * operation.times,
    )
