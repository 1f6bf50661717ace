"""Cost of a placement."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np

from c2c.ranges import In, Index, check_fields
from c2c.systems.tessera.work import Gpus, Work

__all__ = ["Options", "Plan", "Policy", "Stage", "cost", "costs_of", "memory_of", "stages_of"]

Policy = Literal["throughput", "latency"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Options of the planner beyond the paper.

    Attributes:
      one_transfer: whether data is sent once a GPU.
      senders_pay: whether transfers count for senders.
      max_cuts: most transfers between GPUs; None: no limit.
      price: of a second of transfers under the throughput policy, in seconds of the slowest stage.
    """

    one_transfer: bool = False
    senders_pay: bool = False
    max_cuts: Index | None = None
    price: Annotated[float, In("[0, inf]")] = 0.0

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True, slots=True)
class Stage:
    """A GPU's part of a step: computation and communication, overlapped."""

    compute_s: float
    communication_s: float

    @property
    def seconds(self) -> float:
        """Time of the stage: W_g = max(T_g, M_g)."""
        return max(self.compute_s, self.communication_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A placement.

    Attributes:
      objective_s: cost under the policy.
      bound_s: lower bound on costs.
      cuts: transfers between GPUs.
      method: cut, sweep, milp or another.
    """

    policy: Policy
    gpu_of: tuple[int, ...]
    objective_s: float
    bound_s: float
    stages: tuple[Stage, ...]
    cuts: int
    method: str

    @property
    def gap(self) -> float:
        """Largest share by which the best cost may be lower."""
        if self.objective_s <= 0:
            return 0.0
        return max(0.0, 1.0 - self.bound_s / self.objective_s)


def _sent(
    work: Work, gpu_of: Sequence[int], options: Options
) -> dict[tuple[int, ...], list[float]]:
    result: dict[tuple[int, ...], list[float]] = {}
    for number, edge in enumerate(work.transfers):
        u, g = gpu_of[edge.source], gpu_of[edge.target]
        if u == g:
            continue
        key = (u, g, edge.source) if options.one_transfer else (u, g, -1, number)
        pair = result.setdefault(key, [0.0, 0.0])
        pair[:] = max(pair[0], edge.nbytes), max(pair[1], edge.weight)
    return result


def stages_of(
    work: Work, gpus: Gpus, gpu_of: Sequence[int], options: Options | None = None
) -> tuple[tuple[Stage, ...], int]:
    """Return each GPU's stage, and the number of transfers.

    Source: Tessera, section III-B: T_g and M_g.
    """
    options = options or Options()
    count = len(gpus.names)
    compute = np.zeros(count)
    np.add.at(compute, list(gpu_of), work.times[np.arange(len(gpu_of)), list(gpu_of)])
    moved = np.zeros(count)
    sent = _sent(work, gpu_of, options)
    for (u, g, *_), (nbytes, weight) in sent.items():
        seconds = weight * gpus.seconds(nbytes, u, g) if weight else 0.0
        moved[g] += seconds
        if options.senders_pay:
            moved[u] += seconds
    return tuple(Stage(float(c), float(m)) for c, m in zip(compute, moved, strict=True)), len(sent)


def cost(policy: Policy, stages: Sequence[Stage], options: Options | None = None) -> float:
    """Return a policy's objective in seconds.

    Throughput: the slowest stage. Latency: the sum of all kernels and transfers.
    """
    options = options or Options()
    sent = sum(s.communication_s for s in stages) / (2 if options.senders_pay else 1)
    if policy == "throughput":
        return max(s.seconds for s in stages) + options.price * sent
    return sum(s.compute_s for s in stages) + sent


def costs_of(
    work: Work, gpus: Gpus, policy: Policy, placements: Any, options: Options | None = None
) -> Any:
    """Return the costs of [placement][kernel], as an array."""
    options = options or Options()
    if options.one_transfer:  # the placement decides which transfers are one
        return np.array(
            [cost(policy, stages_of(work, gpus, row, options)[0], options) for row in placements]
        )
    count = len(gpus.names)
    compute = np.stack(
        [np.where(placements == g, work.times[:, g], 0.0).sum(1) for g in range(count)], 1
    )
    moved = np.zeros_like(compute)
    edges = work.transfers
    sources = placements[:, [e.source for e in edges]]
    targets = placements[:, [e.target for e in edges]]
    for u in range(count):
        for g in range(count):
            if u == g or not edges:
                continue
            seconds = np.array(
                [e.weight * gpus.seconds(e.nbytes, u, g) if e.weight else 0.0 for e in edges]
            )
            sent = np.where((sources == u) & (targets == g), seconds, 0.0).sum(1)
            moved[:, g] += sent
            if options.senders_pay:
                moved[:, u] += sent
    every = moved.sum(1) / (2 if options.senders_pay else 1)
    if policy == "throughput":
        # `every` may be infinite, and 0 times infinity is no number
        priced = options.price * every if options.price else 0.0
        return np.maximum(compute, moved).max(1) + priced
    return compute.sum(1) + every


def memory_of(work: Work, gpu_of: Sequence[int], count: int) -> tuple[float, ...]:
    """Return the weight bytes on each of `count` GPUs."""
    totals = [0.0] * count
    for weights in work.weights:
        for gpu in {gpu_of[k] for k in weights.readers}:
            totals[gpu] += weights.nbytes
    return tuple(totals)
