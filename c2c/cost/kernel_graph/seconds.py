"""Time of a kernel on a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from c2c.cost.kernel_graph.gpus import TimedGpu
from c2c.cost.kernel_graph.kernels import StepKernel
from c2c.cost.resident import resident_gemm_time, throttled_s
from c2c.errors import SettingError
from c2c.hardware import Gpu
from c2c.ranges import FromZero, Share, SomeShare, check_fields

__all__ = ["Efficiency", "kernel_s", "step_s"]

_REFERENCE_GHZ = 1.41  # rate of an A100, where a launch takes `launch_s`

Seconds = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Efficiency:
    """Attained shares of datasheets' rates, and launch time: assumptions."""

    tensor: SomeShare = 0.7
    cores: SomeShare = 0.5
    hbm: SomeShare = 0.85
    l2: SomeShare = 0.7
    l2_share: Share = 0.5  # share of L2 that still holds results of earlier kernels
    launch_s: FromZero = 3e-6

    def __post_init__(self) -> None:
        check_fields(self, "efficiency")


def kernel_s(kernel: StepKernel, on: TimedGpu, efficiency: Efficiency | None = None) -> float:
    """Return the seconds of a kernel alone: the longest of compute, HBM and L2.

    Raises:
      SettingError: the GPU's file lacks a required rate.

    Source: ours; Tessera measures kernels.
    """
    if kernel.product is not None:
        m, k, n = kernel.product
        alone = resident_gemm_time(m, n, k, slice_=on.part, constants=on.constants)
        return float(alone.total_s) * _factor(kernel, on) + _wire_s(kernel, on.gpu)
    rest_s = _rest_s(kernel, on.gpu, efficiency or Efficiency())
    return rest_s * _factor(kernel, on) + _wire_s(kernel, on.gpu)


def step_s(
    kernels: Sequence[StepKernel], on: TimedGpu, efficiency: Efficiency | None = None
) -> Seconds:
    """Return the seconds t[k,g] of a step's kernels on a GPU at its power limit.

    Raises:
      SettingError: the GPU's file lacks a required rate.
    """
    times_s = np.zeros(len(kernels))
    products = [number for number, k in enumerate(kernels) if k.product is not None]
    cache: dict[tuple[float, ...], float] = {}  # layers repeat their kernels
    for number, k in enumerate(kernels):
        if k.product is None:
            size = (k.tensor_flops, k.core_flops, k.weight_bytes, k.cache_bytes, k.read_bytes,
                    k.write_bytes)  # fmt: skip
            if size not in cache:
                cache[size] = _rest_s(k, on.gpu, efficiency or Efficiency())
            times_s[number] = cache[size]
    if products:
        shapes, which = np.unique(
            np.array([kernels[number].product for number in products]), axis=0, return_inverse=True
        )
        m, k_, n = shapes.T
        timing = resident_gemm_time(m, n, k_, slice_=on.part, constants=on.constants)
        busy_s = float(timing.compute_s[which.ravel()].sum())
        longer_s = throttled_s(timing.compute_s, busy_s, on.constants)
        times_s[products] = (timing.total_s + longer_s)[which.ravel()]
    known_factors = {
        key: on.factor(key[0], is_decode=key[1], tokens=key[2]) / on.share
        for key in {(k.kind, k.is_decode, k.tokens) for k in kernels}
    }
    factors = np.array([known_factors[k.kind, k.is_decode, k.tokens] for k in kernels])
    whole: Seconds = times_s * factors + np.array([_wire_s(k, on.gpu) for k in kernels])
    return whole


def _factor(kernel: StepKernel, on: TimedGpu) -> float:
    measured = on.factor(kernel.kind, is_decode=kernel.is_decode, tokens=kernel.tokens)
    return measured / on.share


def _rest_s(kernel: StepKernel, gpu: Gpu, e: Efficiency) -> float:
    cores, clock, l2 = (_stated(gpu, name) for name in ("fp32_tflops", "clock_ghz", "l2_gbps"))
    near = kernel.read_bytes + kernel.write_bytes
    far = kernel.weight_bytes + kernel.cache_bytes
    from_memory = far + max(0.0, near - e.l2_share * gpu.l2_bytes)
    work = max(
        kernel.tensor_flops / (gpu.bf16_tflops * 1e12 * e.tensor),
        kernel.core_flops / (cores * 1e12 * e.cores),
        from_memory / (gpu.hbm_gbps * 1e9 * e.hbm),
        (near + far) / (l2 * 1e9 * e.l2),
    )
    return work + e.launch_s * _REFERENCE_GHZ / clock


def _wire_s(kernel: StepKernel, gpu: Gpu) -> float:
    if kernel.wire_bytes == 0.0:
        return 0.0
    return kernel.wire_bytes / (_stated(gpu, "nvlink_gbps") * 1e9)


def _stated(gpu: Gpu, name: str) -> float:
    value: float | None = getattr(gpu, name)
    if value is None:
        raise SettingError(f"gpu.{name}", None, "a number above 0", f"{gpu.name} has none.")
    return value
