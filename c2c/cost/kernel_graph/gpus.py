"""GPUs for kernel timing: rates, memory and GEMM calibration."""

from __future__ import annotations

from dataclasses import dataclass

from c2c.cost.constants import Constants, calibration_for, load_constants
from c2c.hardware import Gpu, Node, Platform, load_platform
from c2c.hardware import Slice as Part
from c2c.ranges import AboveZero, check_fields

__all__ = ["TimedGpu", "timed_gpu", "timed_gpus", "timed_node"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedGpu:
    """A GPU with the rates and constants that time its kernels.

    Attributes:
      name: name of its file in `conf/hardware`, or of a slice.
      gpu: rates and memory.
      constants: cost-model constants that time its GEMMs.
      share: speed factor of all kernels, relative to rates and constants; 1 unless fitted.
    """

    name: str
    gpu: Gpu
    constants: Constants
    share: AboveZero = 1.0

    def __post_init__(self) -> None:
        check_fields(self, self.name)

    @property
    def part(self) -> Part:
        """The GPU as a `c2c.cost` slice, without a link."""
        gpu = self.gpu
        return Part(
            name=self.name, sm_count=gpu.sm_count, hbm_bytes=gpu.hbm_bytes, hbm_gbps=gpu.hbm_gbps,
            bf16_tflops=gpu.bf16_tflops, l2_bytes=gpu.l2_bytes, link_cap_gbps=0.0,
        )  # fmt: skip


def timed_gpu(platform: Platform | str, share: float = 1.0) -> TimedGpu:
    """Return a whole GPU with the calibration of its chip.

    Args:
      platform: platform of `conf/hardware`, or its name.
      share: speed factor of all kernels.

    Raises:
      SettingError: the name is unknown, or the share is not above 0.
    """
    chip = load_platform(platform) if isinstance(platform, str) else platform
    constants = load_constants(calibration_for(chip.name))
    return TimedGpu(name=chip.name, gpu=chip.gpu, constants=constants, share=share)


def timed_gpus(*names: str) -> tuple[TimedGpu, ...]:
    """Return GPUs of `conf/hardware` by name."""
    return tuple(map(timed_gpu, names))


def timed_node(node: Node, constants: Constants | None = None) -> tuple[TimedGpu, ...]:
    """Return the GPUs of a node, or its slices with the constants of their chip.

    Args:
      node: the node.
      constants: those of the first GPU's kind, or of the slices' chip; None: by its name.
    """
    chip = (node.chip or node.platforms[0]).name
    own = constants or load_constants(calibration_for(chip))
    if node.chip is None:
        every = {name: timed_gpu(name) for name in {*node.gpus} - {chip}}
        first = TimedGpu(name=chip, gpu=node.platforms[0].gpu, constants=own)
        return tuple(every.get(name, first) for name in node.gpus)
    return tuple(
        TimedGpu(name=part.name, gpu=platform.gpu, constants=own.on(part))
        for part, platform in zip(node.parts, node.platforms, strict=True)
    )
