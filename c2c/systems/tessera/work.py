"""Inputs of the planner."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from c2c.cost.kernel_graph import (
    Efficiency,
    Served,
    StepKernel,
    TimedGpu,
    Transfer,
    Weights,
    step_s,
    transfers_of,
)
from c2c.errors import SettingError

__all__ = ["MOST_S", "Gpus", "Work", "joined", "served_work", "streamed_work", "work_of"]

MOST_S = 1e6  # longest kernel; a solver's microseconds stay finite numbers


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """A model's step: kernels in program order.

    Attributes:
      times_s: [kernel][gpu].
      transfers: from an earlier to a later kernel.
      weights: with the kernels that read them.
      pinned: kernel -> its only GPU.
    """

    names: tuple[str, ...]
    times_s: tuple[tuple[float, ...], ...]
    transfers: tuple[Transfer, ...] = ()
    weights: tuple[Weights, ...] = ()
    pinned: Mapping[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        count = len(self.names)
        if not count:
            raise SettingError("names", self.names, "at least one kernel")
        if len(self.times_s) != count:
            raise SettingError("times_s", len(self.times_s), f"a row for each of {count} kernels")
        width = len(self.times_s[0])
        for name, row in zip(self.names, self.times_s, strict=True):
            if len(row) != width or not all(0 <= t <= MOST_S for t in row):
                raise SettingError(
                    f"times_s[{name}]", row,
                    f"{width} numbers from 0 to {MOST_S:g} seconds, one for each GPU",
                )  # fmt: skip
        for edge in self.transfers:
            if not 0 <= edge.source < edge.target < count:
                raise SettingError(
                    "transfers", (edge.source, edge.target),
                    "(source, target) from an earlier to a later kernel",
                )  # fmt: skip
            if not (math.isfinite(edge.nbytes) and edge.nbytes >= 0 and edge.weight >= 0):
                raise SettingError("transfers.nbytes", edge.nbytes, "a number of at least 0")
        for kernel, gpu in self.pinned.items():
            if not (0 <= kernel < count and 0 <= gpu < width):
                raise SettingError("pinned", (kernel, gpu), "a kernel and a GPU that exist")

    @property
    def times(self) -> Any:
        """Seconds as an array [kernel, GPU]."""
        return np.array(self.times_s, np.float64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpus:
    """GPUs and their links.

    Attributes:
      latency_s: [from][to], seconds before the first byte.
      gbps: [from][to], 1e9 bytes a second; 0: no link.
      memory_bytes: of each GPU; None: no limit, as in the paper.
    """

    names: tuple[str, ...]
    latency_s: tuple[tuple[float, ...], ...]
    gbps: tuple[tuple[float, ...], ...]
    memory_bytes: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        count = len(self.names)
        if count < 1 or len(set(self.names)) != count:
            raise SettingError("gpus", self.names, "at least one GPU, each named once")
        for name, table in (("latency_s", self.latency_s), ("gbps", self.gbps)):
            is_square = len(table) == count and all(len(row) == count for row in table)
            if not is_square or not all(x >= 0 and math.isfinite(x) for row in table for x in row):
                raise SettingError(f"gpus.{name}", table, f"{count} x {count} numbers, at least 0")
        if self.memory_bytes is not None and len(self.memory_bytes) != count:
            raise SettingError("gpus.memory_bytes", self.memory_bytes, f"{count} numbers")

    @classmethod
    def alike(
        cls,
        names: Sequence[str],
        *,
        gbps: float,
        latency_s: float,
        memory_bytes: Sequence[float] | None = None,
    ) -> Gpus:
        """Return GPUs with the same link between all of them."""
        count = len(names)
        return cls(
            names=tuple(names),
            latency_s=((latency_s,) * count,) * count,
            gbps=((gbps,) * count,) * count,
            memory_bytes=None if memory_bytes is None else tuple(memory_bytes),
        )

    def seconds(self, nbytes: float, source: int, target: int) -> float:
        """Return a transfer's seconds; infinity if there is no link."""
        gbps = self.gbps[source][target]
        return self.latency_s[source][target] + nbytes / (gbps * 1e9) if gbps else math.inf


def joined(works: Sequence[tuple[Work, float]]) -> Work:
    """Return several steps as one work, times their counts."""
    names: list[str] = []
    times: list[tuple[float, ...]] = []
    transfers: list[Transfer] = []
    weights: list[Weights] = []
    pinned: dict[int, int] = {}
    for number, (work, count) in enumerate(works):
        offset = len(names)
        names += [f"{number}/{name}" for name in work.names]
        times += [tuple(count * t for t in row) for row in work.times_s]
        transfers += [
            Transfer(offset + e.source, offset + e.target, e.nbytes, count * e.weight)
            for e in work.transfers
        ]
        weights += [Weights(w.nbytes, tuple(offset + k for k in w.readers)) for w in work.weights]
        pinned |= {offset + kernel: gpu for kernel, gpu in work.pinned.items()}
    return Work(
        names=tuple(names), times_s=tuple(times), transfers=tuple(transfers),
        weights=tuple(weights), pinned=pinned,
    )  # fmt: skip


def served_work(
    served: Served, gpus: Sequence[TimedGpu], efficiency: Efficiency | None = None
) -> Work:
    """Return a served model's phases as one work, in seconds a request."""
    both = joined(
        [(work_of(phase.kernels, gpus, efficiency), phase.steps) for phase in served.phases]
    )
    return replace(
        both,
        transfers=(*both.transfers, *served.handed),
        weights=served.kept,
        pinned={n: 0 for n, kernel in enumerate(served.kernels) if kernel.wire_bytes},
    )


def work_of(
    kernels: Sequence[StepKernel],
    gpus: Sequence[TimedGpu],
    efficiency: Efficiency | None = None,
) -> Work:
    """Return a step as the planner's input.

    Args:
      efficiency: shares of datasheets' rates, beside products.

    Raises:
      SettingError: no kernel or GPU, or a missing rate.
    """
    if not gpus:
        raise SettingError("gpus", gpus, "at least one GPU")
    columns = [step_s(kernels, gpu, efficiency) for gpu in gpus]
    return Work(
        names=tuple(k.kind if k.layer < 0 else f"{k.layer}.{k.kind}" for k in kernels),
        times_s=tuple(tuple(map(float, row)) for row in zip(*columns, strict=True)),
        transfers=transfers_of(tuple(kernels)),
        weights=tuple(
            Weights(k.weight_bytes + k.cache_bytes, (number,))
            for number, k in enumerate(kernels)
            if k.weight_bytes + k.cache_bytes
        ),
    )


def streamed_work(
    kernels: Sequence[StepKernel],
    gpus: Sequence[TimedGpu],
    caps_gbps: Sequence[float],
) -> Work:
    """Return a step with streamed weights, each slice alone on the link."""
    # `product` means a product over weights in HBM, and no kernel has one here
    here = [replace(kernel, weight_bytes=0.0, product=None) for kernel in kernels]
    weights = np.array([kernel.weight_bytes for kernel in kernels])
    columns = [
        np.maximum(step_s(here, gpu), weights / (cap * 1e9))
        for gpu, cap in zip(gpus, caps_gbps, strict=True)
    ]
    return Work(
        names=tuple(f"{k.layer}.{k.kind}" for k in kernels),
        times_s=tuple(tuple(map(float, row)) for row in zip(*columns, strict=True)),
        transfers=transfers_of(tuple(kernels)),
    )
