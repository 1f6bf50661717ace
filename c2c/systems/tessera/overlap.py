"""Latency of one step with overlap of transfers and branches, which the latency policy ignores.

The policy adds up all kernels and all transfers. Here GPUs and links work concurrently: each GPU
runs its kernels in program order, each link carries one transfer at a time. Parallel branches on
two GPUs therefore count once.

Source: ours. The placement is the better of the policy's and of a list schedule, which puts each
kernel in program order on the GPU where it ends first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from c2c.cost.kernel_graph import Transfer
from c2c.systems.tessera.plan import Options
from c2c.systems.tessera.planner import plan
from c2c.systems.tessera.work import Gpus, Work

__all__ = ["Overlapped", "overlapped", "overlapped_s"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlapped:
    """A placement for latency with overlap.

    Attributes:
      gpu_of: each kernel's GPU.
      seconds: latency of the step.
      added_s: latency of the same placement without overlap, as the policy counts it.
      method: origin of the placement: policy or list.
    """

    gpu_of: tuple[int, ...]
    seconds: float
    added_s: float
    method: str


def overlapped(work: Work, gpus: Gpus, *, options: Options | None = None) -> Overlapped:
    """Return the better of the policy's placement and a list schedule.

    Args:
      work: a step.
      gpus: GPUs and links, without limits on memory.
      options: options of the policy's plan.
    """
    made = plan(work, gpus, "latency", options=options)
    candidates = {"policy": made.gpu_of, "list": _listed(work, gpus)}
    seconds = {name: overlapped_s(work, gpus, gpu_of) for name, gpu_of in candidates.items()}
    best = min(candidates, key=seconds.__getitem__)
    gpu_of = candidates[best]
    added = float(sum(row[g] for row, g in zip(work.times_s, gpu_of, strict=True))) + sum(
        e.weight * gpus.seconds(e.nbytes, gpu_of[e.source], gpu_of[e.target])
        for e in work.transfers
        if gpu_of[e.source] != gpu_of[e.target] and e.weight
    )
    return Overlapped(gpu_of=gpu_of, seconds=seconds[best], added_s=added, method=best)


def overlapped_s(work: Work, gpus: Gpus, gpu_of: Sequence[int]) -> float:
    """Return the seconds of a step under a placement."""
    clock = _Clock(work, gpus)
    for kernel, gpu in enumerate(gpu_of):
        clock.run(kernel, gpu)
    return max(clock.ended)


def _listed(work: Work, gpus: Gpus) -> tuple[int, ...]:
    clock = _Clock(work, gpus)
    found = []
    for kernel in range(len(work.names)):
        pin = work.pinned.get(kernel)
        allowed = range(len(gpus.names)) if pin is None else (pin,)
        gpu = min(allowed, key=lambda g: clock.ends_s(kernel, g))
        clock.run(kernel, gpu)
        found.append(gpu)
    return tuple(found)


class _Clock:
    """Times at which GPUs and links become free, kernel by kernel in program order."""

    def __init__(self, work: Work, gpus: Gpus) -> None:
        self.work, self.gpus = work, gpus
        self.ended: list[float] = []
        self.where: list[int] = []
        self.free = [0.0] * len(gpus.names)
        self.links: dict[tuple[int, int], float] = {}
        self.takes: list[list[Transfer]] = [[] for _ in work.names]
        for each in sorted(work.transfers, key=lambda e: (e.target, e.source)):
            self.takes[each.target].append(each)

    def ends_s(self, kernel: int, gpu: int) -> float:
        """Return the time at which a kernel would end on a GPU."""
        return self._begin(kernel, gpu, dict(self.links)) + self.work.times_s[kernel][gpu]

    def run(self, kernel: int, gpu: int) -> None:
        """Run the next kernel on a GPU."""
        ended = self._begin(kernel, gpu, self.links) + self.work.times_s[kernel][gpu]
        self.free[gpu] = ended
        self.ended.append(ended)
        self.where.append(gpu)

    def _begin(self, kernel: int, gpu: int, links: dict[tuple[int, int], float]) -> float:
        """Return the time at which a kernel can begin; its transfers occupy `links`."""
        begin = self.free[gpu]
        for each in self.takes[kernel]:
            home = self.where[each.source]
            there = self.ended[each.source]
            if home != gpu and each.weight:
                seconds = self.gpus.seconds(each.nbytes, home, gpu)
                there = max(there, links.get((home, gpu), 0.0)) + each.weight * seconds
                links[home, gpu] = there
            begin = max(begin, there)
        return begin
