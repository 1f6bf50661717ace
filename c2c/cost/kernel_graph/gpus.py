"""A GPU as kernels are timed on it: its rates, and what is measured of products on its kind."""

from __future__ import annotations

from dataclasses import dataclass

from c2c.cost.constants import Constants, calibration_for, load_constants
from c2c.errors import SettingError
from c2c.hardware import Gpu, Platform, load_platform
from c2c.hardware import Slice as Part

__all__ = ["TimedGpu", "timed_gpu", "timed_gpus"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedGpu:
    """A GPU, and by what its kernels are timed.

    Attributes:
      name: of its file in `conf/hardware`, or of a slice.
      gpu: its rates and its memory.
      constants: of the cost model, by which products of matrices are timed.
      share: how fast all kernels are, beside what rates and constants say; 1 unless fitted.
    """

    name: str
    gpu: Gpu
    constants: Constants
    share: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.share < float("inf"):
            raise SettingError(f"{self.name}.share", self.share, "a number above 0")

    @property
    def part(self) -> Part:
        """The GPU as `c2c.cost` takes it; it has no link here."""
        gpu = self.gpu
        return Part(
            name=self.name, sm_count=gpu.sm_count, hbm_bytes=gpu.hbm_bytes, hbm_gbps=gpu.hbm_gbps,
            bf16_tflops=gpu.bf16_tflops, l2_bytes=gpu.l2_bytes, link_cap_gbps=0.0,
        )  # fmt: skip


def timed_gpu(platform: Platform | str, share: float = 1.0) -> TimedGpu:
    """Return a whole GPU with the calibration of its kind.

    Args:
      platform: of `conf/hardware`, or its name.
      share: how fast all its kernels are, beside what is known.

    Raises:
      SettingError: an unknown name, or a share that is not above 0.
    """
    chip = load_platform(platform) if isinstance(platform, str) else platform
    constants = load_constants(calibration_for(chip.name))
    return TimedGpu(name=chip.name, gpu=chip.gpu, constants=constants, share=share)


def timed_gpus(*names: str) -> tuple[TimedGpu, ...]:
    """Return GPUs of `conf/hardware` by their names."""
    return tuple(map(timed_gpu, names))
