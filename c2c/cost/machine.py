"""A slice as the kernels' own prediction sees it: the same chip, the same calibration."""

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
    """Return the rates that `pallas_kernels.gemm.predict` takes, of a slice of a calibrated chip.

    `gemm_time` models the paper's kernel and is fitted to its printed times; this describes the
    same hardware to the model of ours. Rates are sustained ones on either side.

    Args:
      slice_: the chip or a part of it.
      constants: of its calibration.
      platform: whose L2 it has a share of, by SMs, and whose link's latency a read of host memory.
      link_gbps: what the link carries.

    Raises:
      SettingError: the platform's file does not state what its L2 gives.
    """
    gpu, chip = platform.gpu, constants.on(slice_)
    if gpu.l2_gbps is None:
        raise SettingError("gpu.l2_gbps", None, f"stated in the file of {platform.name}")
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
