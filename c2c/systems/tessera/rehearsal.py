"""Rehearsal: choice of placements by simulation of pipelined requests."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from c2c.errors import SettingError
from c2c.systems.tessera.pipeline import Mode, Steps, pipelined
from c2c.systems.tessera.plan import Options, Plan, cost, costs_of, memory_of, stages_of
from c2c.systems.tessera.work import Gpus, Work

__all__ = ["Rehearsed", "one_cut", "rehearsed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rehearsed:
    """Result of a rehearsal.

    Attributes:
      chosen: by kind of step.
      tried_s: of each combination of placements.
    """

    chosen: tuple[int, ...]
    seconds: float
    tried_s: dict[tuple[int, ...], float]


def rehearsed(
    kinds: Sequence[Sequence[Steps]], requests: Sequence[Sequence[int]], mode: Mode, in_flight: int
) -> Rehearsed:
    """Return the fastest placements; the first of equals.

    Args:
      kinds: [kind of step][placement], over the same GPUs.

    Raises:
      SettingError: no placement, or an invalid mode or number.

    Source: ours.
    """
    if not kinds or not all(kinds):
        raise SettingError("kinds", [len(k) for k in kinds], "at least one placement a kind")
    tried = {
        numbers: pipelined(
            [kind[n] for kind, n in zip(kinds, numbers, strict=True)], requests, mode, in_flight
        ).seconds
        for numbers in itertools.product(*(range(len(kind)) for kind in kinds))
    }
    chosen = min(tried, key=tried.__getitem__)
    return Rehearsed(chosen=chosen, seconds=tried[chosen], tried_s=tried)


def one_cut(work: Work, gpus: Gpus) -> Plan:
    """Return the best placement with one cut in program order.

    Raises:
      SettingError: no placement keeps the limits.
    """
    kernels, count = work.times.shape
    if count != len(gpus.names):
        raise SettingError("times_s", count, f"times on {len(gpus.names)} GPUs")
    pairs = [(a, b) for a in range(count) for b in range(count) if a != b or count == 1]
    rows = np.array(
        [[a] * k + [b] * (kernels - k) for a, b in pairs for k in range(1, kernels + 1)], np.intp
    )
    costs = costs_of(work, gpus, "throughput", rows)
    for kernel, gpu in work.pinned.items():
        costs[rows[:, kernel] != gpu] = np.inf
    for n in np.argsort(costs, kind="stable"):
        gpu_of = tuple(map(int, rows[n]))
        if not np.isfinite(costs[n]):
            break
        gpu_bytes = memory_of(work, gpu_of, count)
        room = gpus.memory_bytes or gpu_bytes
        if all(have <= limit for have, limit in zip(gpu_bytes, room, strict=True)):
            stages, cuts = stages_of(work, gpus, gpu_of)
            objective = cost("throughput", stages, Options())
            return Plan(
                policy="throughput", gpu_of=gpu_of, objective_s=objective, bound_s=objective,
                stages=stages, cuts=cuts, method="one cut",
            )  # fmt: skip
    raise SettingError(
        "placement", "one cut", "one that keeps the limits",
        f"memory_bytes={gpus.memory_bytes}, pinned={dict(work.pinned)}.",
    )  # fmt: skip
