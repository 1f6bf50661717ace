"""Choice among placements of each kind of step by trial: the one that pipelines requests best.

A plan's objective takes it that computation and transfers overlap without end. With a few requests
in flight they do not: long groups keep a GPU from what the other one waits for, and many transfers
make a step long. Placements whose objectives are within a percent of one another differ by a third.

    first = [steps_of(work, gpus, p.gpu_of) for p in (plan(work, gpus, "throughput"),
                                                      one_cut(work, gpus))]
    rehearsed([first, second], requests, "priority", 4).chosen

Source: ours. One cut is what pipeline parallelism over unlike GPUs does.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from c2c.errors import SettingError
from c2c.systems.tessera.pipeline import Steps, pipelined
from c2c.systems.tessera.plan import Options, Plan, cost, costs_of, memory_of, stages_of
from c2c.systems.tessera.work import Gpus, Work
from c2c.systems.workers import Mode

__all__ = ["Rehearsed", "one_cut", "rehearsed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rehearsed:
    """The outcome of a rehearsal.

    Attributes:
      chosen: of each kind of step, the number of the placement that was best with the others.
      seconds: that the requests took with them.
      tried_s: the same of every combination, by its numbers.
    """

    chosen: tuple[int, ...]
    seconds: float
    tried_s: dict[tuple[int, ...], float]


def rehearsed(
    kinds: Sequence[Sequence[Steps]], requests: Sequence[Sequence[int]], mode: Mode, in_flight: int
) -> Rehearsed:
    """Return which placements run requests in the least time; the first of equals.

    Args:
      kinds: of each kind of step its placements, over the same GPUs.
      requests: the kinds that each runs, one after the other; see `pipelined`.
      mode: see `pipelined`.
      in_flight: see `pipelined`.

    Raises:
      SettingError: a kind without a placement, a mode or number that cannot be.
    """
    if not kinds or not all(kinds):
        raise SettingError("kinds", [len(k) for k in kinds], "at least one placement of each kind")
    tried = {
        numbers: pipelined(
            [kind[n] for kind, n in zip(kinds, numbers, strict=True)], requests, mode, in_flight
        ).seconds
        for numbers in itertools.product(*(range(len(kind)) for kind in kinds))
    }
    chosen = min(tried, key=tried.__getitem__)
    return Rehearsed(chosen=chosen, seconds=tried[chosen], tried_s=tried)


def one_cut(work: Work, gpus: Gpus) -> Plan:
    """Return the best placement with the first kernels on one GPU and all others on another.

    Best is where the slowest stage is least; one GPU for all is one of them. Its bound is its own
    objective: no other such placement costs less.

    Raises:
      SettingError: none keeps the limits on memory and pinned kernels.
    """
    kernels, count = work.times.shape
    if count != len(gpus.names):
        raise SettingError("times_s", count, f"times on {len(gpus.names)} GPUs")
    pairs = [(a, b) for a in range(count) for b in range(count) if a != b or count == 1]
    found = np.array(
        [[a] * k + [b] * (kernels - k) for a, b in pairs for k in range(1, kernels + 1)], np.intp
    )
    costs = costs_of(work, gpus, "throughput", found)
    for kernel, gpu in work.pinned.items():
        costs[found[:, kernel] != gpu] = np.inf
    for n in np.argsort(costs, kind="stable"):
        gpu_of = tuple(map(int, found[n]))
        if not np.isfinite(costs[n]):
            break
        held = memory_of(work, gpu_of, count)
        room = gpus.memory_bytes or held
        if all(have <= limit for have, limit in zip(held, room, strict=True)):
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
