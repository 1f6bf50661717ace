"""Slices of one GPU as unlike GPUs: a model's kernels over two slices, weights from host memory.

Kernels stream their weights over the link (C2CServe), which bounds both slices together. Placed
kernels stream each weight once for all rows. Two engines apart each stream all weights for a part
of the rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from c2c.cost import calibration_for, load_constants
from c2c.cost.kernel_graph import Efficiency, StepKernel, TimedGpu, step_s, transfers_of
from c2c.errors import SettingError
from c2c.hardware import Platform, Slice
from c2c.systems.tessera.planner import plan, relaxation_s
from c2c.systems.tessera.work import Gpus, Work

__all__ = ["StreamedWay", "slice_gpu", "streamed_ways", "streamed_work"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamedWay:
    """One strategy to serve rows on two slices.

    Attributes:
      name: large, small, apart or kernels; `limit`: the bound of all placements.
      seconds: seconds between two steps of all rows.
      streamed_bytes: bytes over the link in that time: weights, and transfers between slices.
      rows: rows of each slice; with placed kernels all rows pass both.
    """

    name: str
    seconds: float
    streamed_bytes: float
    rows: tuple[int, int]


def slice_gpu(platform: Platform, part: Slice) -> TimedGpu:
    """Return a slice as a GPU, with its own rates; those of FP32 and L2 by its share of SMs."""
    gpu = platform.gpu
    share = part.sm_count / gpu.sm_count
    constants = load_constants(calibration_for(platform.name)).on(part)
    cut = replace(
        gpu, name=part.name, sm_count=part.sm_count, hbm_bytes=part.hbm_bytes,
        hbm_gbps=part.hbm_gbps, bf16_tflops=part.bf16_tflops, l2_bytes=part.l2_bytes,
        fp32_tflops=gpu.fp32_tflops and gpu.fp32_tflops * share,
        l2_gbps=gpu.l2_gbps and gpu.l2_gbps * share,
    )  # fmt: skip
    return TimedGpu(name=part.name, gpu=cut, constants=constants)


def streamed_work(
    kernels: Sequence[StepKernel],
    gpus: Sequence[TimedGpu],
    caps_gbps: Sequence[float],
    efficiency: Efficiency | None = None,
) -> Work:
    """Return a step whose weights are streamed over the link, each slice alone on it.

    Args:
      kernels: kernels of the step.
      gpus: the slices.
      caps_gbps: rate of each slice alone on the link, 1e9 bytes a second.
      efficiency: see `work_of`.
    """
    # `product` means a product over weights in HBM, and no kernel has one here
    here = [replace(kernel, weight_bytes=0.0, product=None) for kernel in kernels]
    weights = np.array([kernel.weight_bytes for kernel in kernels])
    columns = [
        np.maximum(step_s(here, gpu, efficiency), weights / (cap * 1e9))
        for gpu, cap in zip(gpus, caps_gbps, strict=True)
    ]
    return Work(
        names=tuple(f"{k.layer}.{k.kind}" for k in kernels),
        times_s=tuple(tuple(map(float, row)) for row in zip(*columns, strict=True)),
        transfers=transfers_of(tuple(kernels)),
    )


def streamed_ways(
    step: Callable[[int], tuple[StepKernel, ...]],
    rows: int,
    platform: Platform,
    parts: Sequence[Slice],
    link_gbps: float,
    *,
    latency_s: float = 10e-6,
    efficiency: Efficiency | None = None,
) -> tuple[StreamedWay, ...]:
    """Return the costs of each strategy for a step of all rows, with several batches in flight.

    Args:
      step: function from rows to the kernels of a step.
      rows: rows of both slices together.
      platform: the chip.
      parts: two slices, the larger one first.
      link_gbps: rate of the link for all slices together, 1e9 bytes a second.
      latency_s: latency of a transfer between slices, which passes through host memory.
      efficiency: see `work_of`.

    Raises:
      SettingError: not two slices, fewer than two rows, or the chip's file lacks a rate.
    """
    if len(parts) != 2:
        raise SettingError("slices", [p.name for p in parts], "two slices")
    if rows < 2:
        raise SettingError("rows", rows, "a whole number of at least 2")
    gpus = [slice_gpu(platform, part) for part in parts]
    caps = [min(part.link_cap_gbps, link_gbps) for part in parts]

    def work(count: int) -> Work:
        return streamed_work(step(count), gpus, caps, efficiency)

    def weights(count: int) -> float:
        return sum(k.weight_bytes for k in step(count))

    whole = work(rows)
    alone = [float(t) for t in whole.times.sum(0)]
    # a transfer leaves one slice and enters the other, so it uses the link twice
    between = Gpus.alike([p.name for p in parts], gbps=min(caps) / 2, latency_s=latency_s)
    made = plan(whole, between, "throughput", gap=0.02, time_limit_s=20.0)
    sent = sum(
        2 * e.nbytes for e in whole.transfers if made.gpu_of[e.source] != made.gpu_of[e.target]
    )
    once, both = weights(rows), (rows, rows)
    placed_s = max(made.objective_s, (once + sent) / (link_gbps * 1e9))
    limit_s = max(relaxation_s(whole), once / (link_gbps * 1e9))
    return (
        StreamedWay(name="large", seconds=alone[0], streamed_bytes=once, rows=(rows, 0)),
        StreamedWay(name="small", seconds=alone[1], streamed_bytes=once, rows=(0, rows)),
        _apart(work, weights, rows, link_gbps),
        StreamedWay(name="kernels", seconds=placed_s, streamed_bytes=once + sent, rows=both),
        StreamedWay(name="limit", seconds=limit_s, streamed_bytes=once, rows=both),
    )


def _apart(
    work: Callable[[int], Work], weights: Callable[[int], float], rows: int, link_gbps: float
) -> StreamedWay:
    """Return two independent engines with the best split of rows, over one link."""
    best: StreamedWay | None = None
    for eighths in range(1, 8):
        one = min(rows - 1, max(1, rows * eighths // 8))
        moved = weights(one) + weights(rows - one)
        seconds = max(
            float(work(one).times[:, 0].sum()), float(work(rows - one).times[:, 1].sum()),
            moved / (link_gbps * 1e9),
        )  # fmt: skip
        if best is None or seconds < best.seconds:
            best = StreamedWay(
                name="apart", seconds=seconds, streamed_bytes=moved, rows=(one, rows - one)
            )
    assert best is not None
    return best
