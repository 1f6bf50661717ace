"""Rates of a calibrated slice as a `Machine` of the kernels' own time prediction."""

from __future__ import annotations

from c2c.cost.constants import Constants
from c2c.cost.gemm_time import kernel_link_gbps
from c2c.errors import SettingError
from c2c.hardware import Platform, Slice
from pallas_kernels.gemm import Machine

__all__ = ["machine_of"]

L2_EFFICIENCY = 0.9647
"""Sustained share of a Hopper GPU's L2 peak: 9,780 of 10,138 GB/s.

Source: RRZE-HPC/gpu-benches, gpu-l2-cache/h200.txt of 2024-04-03, median of its sets of 8 to 41 MB.
"""


def machine_of(
    slice_: Slice, constants: Constants, platform: Platform, *, link_gbps: float
) -> Machine:
    """Return the rates of a calibrated slice for `pallas_kernels.gemm.predict`.

    `gemm_time` models the paper's kernel and is fitted to its printed times; this describes the
    same hardware for our own kernels. Both use sustained rates.

    Args:
      slice_: chip or a part of it.
      constants: calibration of the chip.
      platform: platform; gives the slice a share of its L2 by SMs, and the latency of host reads.
      link_gbps: capacity of the link.

    Raises:
      SettingError: the platform's file has no L2 rate.
    """
    gpu, chip = platform.gpu, constants.on(slice_)
    if gpu.l2_gbps is None:
        raise SettingError("gpu.l2_gbps", None, f"a number above 0 in the file of {platform.name}")
    return Machine(
        device=slice_.name,
        sm_count=slice_.sm_count,
        link_gbps=float(kernel_link_gbps(slice_, chip, link_gbps)),
        hbm_gbps=slice_.hbm_gbps * chip.hbm_efficiency,
        bf16_tflops=slice_.bf16_tflops * chip.mma_efficiency,
        l2_gbps=gpu.l2_gbps * L2_EFFICIENCY * slice_.sm_count / gpu.sm_count,
        l2_bytes=float(slice_.l2_bytes),
        link_latency_s=platform.link.link_latency_s,
        tile_s=chip.asym_issue_s,
        launch_s=chip.launch_s,
        source=f"calibration {constants.name}; fixed costs assumed",
    )
