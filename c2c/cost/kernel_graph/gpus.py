"""GPUs for kernel timing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from c2c.cost.constants import Constants
from c2c.hardware import Gpu
from c2c.hardware import Slice as Part
from c2c.ranges import AboveZero, check_fields

__all__ = ["TimedGpu", "Times"]


class Times(NamedTuple):
    """Measured over modelled kernel times by tokens, ascending."""

    kernel: str
    is_decode: bool
    tokens: tuple[int, ...]
    factors: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedGpu:
    """A GPU with the rates of its kernels.

    Attributes:
      name: of its file in `conf/hardware`, or of a slice.
      share: speed factor of all kernels; 1 unless fitted.
      times: measured times of kernels.
    """

    name: str
    gpu: Gpu
    constants: Constants
    share: AboveZero = 1.0
    times: tuple[Times, ...] = ()

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

    def factor(self, kernel: str, *, is_decode: bool, tokens: int) -> float:
        """Return a kernel's measured over modelled time, or 1."""
        for one in self.times if tokens else ():
            if (one.kernel, one.is_decode) == (kernel, is_decode):
                return float(np.interp(np.log(tokens), np.log(one.tokens), one.factors))
        return 1.0
