"""How long a kernel takes on a GPU, from what it computes and moves.

The longest of four: tensor cores, CUDA cores, device memory and L2; and a launch on top. What
earlier kernels of the step have left in L2 is not read from device memory.

Source: ours; the paper measures each kernel on each GPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from c2c.errors import SettingError
from c2c.hardware import Gpu
from c2c.systems.tessera.kernels import StepKernel, transfers_of
from c2c.systems.tessera.work import Weights, Work

__all__ = ["Efficiency", "kernel_s", "work_of"]

_REFERENCE_GHZ = 1.41  # an A100's, at which a launch takes `launch_s`


@dataclass(frozen=True, slots=True, kw_only=True)
class Efficiency:
    """Shares of the datasheet's rates that kernels attain, and what a launch takes.

    Assumptions, the same for all GPUs and kernels; none is fitted.
    """

    tensor: float = 0.7
    cores: float = 0.5
    hbm: float = 0.85
    l2: float = 0.7
    l2_share: float = 0.5  # of L2 that a kernel finds filled with what earlier ones wrote
    launch_s: float = 3e-6

    def __post_init__(self) -> None:
        for name in ("tensor", "cores", "hbm", "l2"):
            if not 0 < getattr(self, name) <= 1:
                raise SettingError(f"efficiency.{name}", getattr(self, name), "a number in (0, 1]")
        if not 0 <= self.l2_share <= 1:
            raise SettingError("efficiency.l2_share", self.l2_share, "a number in [0, 1]")
        if self.launch_s < 0:
            raise SettingError("efficiency.launch_s", self.launch_s, "a number of at least 0")


def kernel_s(kernel: StepKernel, gpu: Gpu, efficiency: Efficiency | None = None) -> float:
    """Return t[k,g].

    Raises:
      SettingError: the GPU's file does not state what is needed.
    """
    e = efficiency or Efficiency()
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
    return work + kernel.wire_s + e.launch_s * _REFERENCE_GHZ / clock


def work_of(
    kernels: tuple[StepKernel, ...],
    gpus: Sequence[Gpu],
    efficiency: Efficiency | None = None,
    shares: Sequence[float] | None = None,
) -> Work:
    """Return a step as what the planner takes.

    Args:
      kernels: of the step.
      gpus: where they may run.
      efficiency: of kernels, the same on all GPUs.
      shares: of each GPU, how fast its kernels are relative to that; None: 1 for all.
    """
    fast = shares or (1.0,) * len(gpus)
    if len(fast) != len(gpus) or min(fast) <= 0:
        raise SettingError("shares", shares, f"{len(gpus)} numbers above 0")
    known: dict[tuple[float, ...], tuple[float, ...]] = {}  # layers repeat their kernels

    def times_of(k: StepKernel) -> tuple[float, ...]:
        size = (k.tensor_flops, k.core_flops, k.weight_bytes, k.cache_bytes, k.read_bytes,
                k.write_bytes, k.wire_s)  # fmt: skip
        if size not in known:
            known[size] = tuple(
                kernel_s(k, gpu, efficiency) / f for gpu, f in zip(gpus, fast, strict=True)
            )
        return known[size]

    return Work(
        names=tuple(k.kind if k.layer < 0 else f"{k.layer}.{k.kind}" for k in kernels),
        times_s=tuple(map(times_of, kernels)),
        transfers=transfers_of(kernels),
        weights=tuple(
            Weights(k.weight_bytes + k.cache_bytes, (number,))
            for number, k in enumerate(kernels)
            if k.weight_bytes + k.cache_bytes
        ),
    )


def _stated(gpu: Gpu, name: str) -> float:
    value: float | None = getattr(gpu, name)
    if value is None:
        raise SettingError(f"gpu.{name}", None, "a number above 0", f"{gpu.name} has none.")
    return value
