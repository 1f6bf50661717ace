"""Placement as a mixed-integer program, solved by HiGHS."""

from __future__ import annotations

import contextlib
import math
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import coo_matrix

from c2c.systems.tessera.contraction import Contracted, contracted
from c2c.systems.tessera.plan import Options, Policy
from c2c.systems.tessera.work import Gpus, Work

__all__ = ["Solved", "solve"]

_MICROSECONDS = 1e6  # the solver's tolerances are absolute; a step costs some thousand


@dataclass(frozen=True, slots=True)
class Solved:
    """Result of the solver.

    Attributes:
      bound_s: lower bound on costs.
      is_infeasible: whether provably no placement keeps the limits.
    """

    gpu_of: tuple[int, ...] | None
    bound_s: float
    is_infeasible: bool
    variables: int


def solve(
    work: Work,
    gpus: Gpus,
    policy: Policy,
    *,
    options: Options,
    tied: Sequence[int],
    at_most_s: float,
    gap: float,
    time_limit_s: float,
    divisible: bool = False,
) -> Solved:
    """Return the best placement found.

    Source: Tessera, section III-B. Ours: memory, one transfer a producer, paying senders, a limit
    on cuts.
    """
    if options.max_cuts is not None and options.max_cuts >= len(work.transfers):
        options = replace(options, max_cuts=None)
    contraction = _asked(work, gpus, policy, options, tied)
    program = _Program(work, gpus, policy, options, np.asarray(contraction.tied))
    program.build(at_most_s)
    matrix = coo_matrix(
        (program.values, (program.rows, program.columns)),
        shape=(len(program.low), program.width),
    ).tocsr()
    upper = np.ones(program.width)
    integrality = np.zeros(program.width)
    integrality[: program.groups * program.count] = not divisible
    if policy == "throughput":
        upper[-1] = np.inf
    upper[program.forbidden] = 0.0
    lower = np.zeros(program.width)
    for kernel, gpu in work.pinned.items():
        lower[program.x(program.tied[kernel], gpu)] = 1.0
    for group, gpu in contraction.fixed.items():
        lower[program.x(group, gpu)] = 1.0
    with _silent():
        result = milp(
            program.objective,
            constraints=LinearConstraint(matrix, program.low, program.high),
            integrality=integrality,
            bounds=Bounds(lower, upper),
            options={"time_limit": time_limit_s, "mip_rel_gap": gap},
        )
    bound = (result.fun if divisible else result.mip_dual_bound) or 0.0
    if divisible or result.x is None:
        return Solved(None, max(0.0, bound) / _MICROSECONDS, result.status == 2, program.width)
    x = result.x[: program.groups * program.count].reshape(program.groups, program.count)
    of_group = x.argmax(1)
    gpu_of = tuple(int(of_group[g]) for g in program.tied)
    return Solved(gpu_of, bound / _MICROSECONDS, False, program.width)


def _asked(
    work: Work, gpus: Gpus, policy: Policy, options: Options, tied: Sequence[int]
) -> Contracted:
    contraction = None
    if policy == "latency" and not options.one_transfer and options.max_cuts is None:
        weights = work.weights if gpus.memory_bytes is not None else ()
        contraction = contracted(work, gpus, tied, {tied[k] for w in weights for k in w.readers})
    return contraction or Contracted(tuple(tied), {})


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    sys.stdout.flush()
    descriptor, nowhere = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 1)
        yield
    finally:
        os.dup2(descriptor, 1)
        os.close(descriptor)
        os.close(nowhere)


# x[k,g] is 1 if kernel k runs on GPU g. y[e,u,g] is at least x[i,u] + x[j,g] - 1 for a transfer e
# from i to j: it pays for the transfer if both are 1, and need not be an integer. Tied kernels
# share their x.
@dataclass(slots=True)
class _Program:
    work: Work
    gpus: Gpus
    policy: Policy
    options: Options
    tied: Any
    rows: list[int] = field(default_factory=list)
    columns: list[int] = field(default_factory=list)
    values: list[float] = field(default_factory=list)
    low: list[float] = field(default_factory=list)
    high: list[float] = field(default_factory=list)
    forbidden: list[int] = field(default_factory=list)
    width: int = 0
    objective: Any = None

    @property
    def count(self) -> int:
        return len(self.gpus.names)

    @property
    def groups(self) -> int:
        return int(self.tied.max()) + 1

    def x(self, group: int, gpu: int) -> int:
        return int(group) * self.count + gpu

    def build(self, at_most_s: float) -> None:
        transfers = self._transfers()
        pairs = [(u, g) for u in range(self.count) for g in range(self.count) if u != g]
        first_y = self.groups * self.count
        first_z = first_y + len(transfers) * len(pairs)
        weights = self._kept()
        self.width = first_z + len(weights) * self.count + (self.policy == "throughput")
        times = np.zeros((self.groups, self.count))
        np.add.at(times, self.tied, self.work.times * _MICROSECONDS)
        costs = np.zeros(self.width)
        for group in range(self.groups):
            self._row([(self.x(group, g), 1.0) for g in range(self.count)], 1.0, 1.0)
        paid: list[list[tuple[int, float]]] = [[] for _ in range(self.count)]
        every: list[tuple[int, float]] = []
        for number, (key, (edges, nbytes, weight)) in enumerate(transfers.items()):
            for which, (u, g) in enumerate(pairs):
                y = first_y + number * len(pairs) + which
                seconds = self.gpus.seconds(nbytes, u, g)
                for source, target in edges:
                    terms = [(y, 1.0), (self.x(source, u), -1.0), (self.x(target, g), -1.0)]
                    self._row(terms, -1.0, math.inf)
                if weight and math.isinf(seconds):
                    self.forbidden.append(y)
                    continue
                # `key[0]` is the number of tied transfers that this y stands for
                price = weight * seconds * _MICROSECONDS if weight else 0.0
                costs[y] = price
                every.append((y, float(key[0])))
                paid[g].append((y, price))
                if self.options.senders_pay:
                    paid[u].append((y, price))
        self._memory(weights, first_z)
        if self.options.max_cuts is not None:
            self._row(every, -math.inf, self.options.max_cuts)
        self._goal(times, costs, paid, at_most_s)

    def _transfers(self) -> dict[tuple[Any, ...], tuple[list[tuple[int, int]], float, float]]:
        """Return y's pairs of groups, bytes and weight."""
        result: dict[tuple[Any, ...], tuple[list[tuple[int, int]], float, float]] = {}
        alike: dict[tuple[int, int, float], list[float]] = {}
        by_producer: dict[int, list[Any]] = {}
        for edge in self.work.transfers:
            a, b = int(self.tied[edge.source]), int(self.tied[edge.target])
            if a == b:
                continue
            if self.options.one_transfer:
                entry = by_producer.setdefault(edge.source, [[], 0.0, 0.0])
                entry[0].append((a, b))
                entry[1], entry[2] = max(entry[1], edge.nbytes), max(entry[2], edge.weight)
            else:
                entry = alike.setdefault((a, b, edge.nbytes), [0.0, 0])
                entry[0] += edge.weight
                entry[1] += 1
        for producer, (edges, nbytes, weight) in by_producer.items():
            result[1, producer] = (edges, nbytes, weight)
        for (a, b, nbytes), (weight, number) in alike.items():
            result[number, a, b, nbytes] = ([(a, b)], nbytes, weight)
        return result

    def _kept(self) -> dict[tuple[int, ...], float]:
        result: dict[tuple[int, ...], float] = {}
        if self.gpus.memory_bytes is not None:
            for weights in self.work.weights:
                readers = tuple(sorted({int(self.tied[k]) for k in weights.readers}))
                result[readers] = result.get(readers, 0.0) + weights.nbytes
        return result

    def _memory(self, weights: Mapping[tuple[int, ...], float], first_z: int) -> None:
        for g, limit in enumerate(self.gpus.memory_bytes or ()):
            terms = []
            for number, (readers, nbytes) in enumerate(weights.items()):
                z = first_z + number * self.count + g
                for group in readers:
                    self._row([(z, 1.0), (self.x(group, g), -1.0)], 0.0, math.inf)
                terms.append((z, nbytes / 1e9))
            self._row(terms, -math.inf, limit / 1e9)

    def _goal(
        self, times: Any, costs: Any, paid: list[list[tuple[int, float]]], at_most_s: float
    ) -> None:
        self.objective = np.zeros(self.width)
        last = self.width - 1
        limit = at_most_s * _MICROSECONDS * (1 + 1e-9)
        if self.policy == "latency":
            self.objective[: times.size] = times.ravel()
            self.objective += costs  # with a row for the limit HiGHS takes twice as long
            return
        self.objective = self.options.price * costs
        self.objective[last] = 1.0
        for g in range(self.count):
            compute = [(self.x(group, g), float(times[group, g])) for group in range(self.groups)]
            self._row([*compute, (last, -1.0)], -math.inf, 0.0)
            self._row([*paid[g], (last, -1.0)], -math.inf, 0.0)
        if math.isfinite(limit):
            terms = [(k, float(v)) for k, v in enumerate(self.objective) if v]
            self._row(terms, -math.inf, limit)

    def _row(self, terms: Sequence[tuple[int, float]], low: float, high: float) -> None:
        row = len(self.low)
        for column, value in terms:
            self.rows.append(row)
            self.columns.append(column)
            self.values.append(value)
        self.low.append(low)
        self.high.append(high)
