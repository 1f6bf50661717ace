"""A slice as the kernels' own prediction sees it: the same chip, the same calibration."""

from __future__ import annotations

from c2c.cost.constants import Constants
from c2c.cost.gemm_time import kernel_link_gbps
from c2c.hardware import Link, Slice
from pallas_kernels.gemm import MACHINES, Machine

__all__ = ["machine_of"]

# What no calibration has yet: the L2's rate, of an SM, and fixed costs.
_LIKE = MACHINES["NVIDIA H200"]


def machine_of(slice_: Slice, constants: Constants, link: Link, *, link_gbps: float) -> Machine:
    """Return the rates that `pallas_kernels.gemm.predict` takes, of a slice of a calibrated chip.

    `gemm_time` models the paper's kernel and is fitted to its printed times; this describes the
    same hardware to the model of ours. Rates are sustained ones on either side.

    Args:
      slice_: the chip or a part of it.
      constants: of its calibration.
      link: whose latency a read of host memory has.
      link_gbps: what the link carries.
    """
    chip = constants.on(slice_)
    return Machine(
        device=slice_.name,
        sm_count=slice_.sm_count,
        link_gbps=float(kernel_link_gbps(slice_, chip, link_gbps)),
        hbm_gbps=slice_.hbm_gbps * chip.hbm_efficiency,
        bf16_tflops=slice_.bf16_tflops * chip.mma_efficiency,
        l2_gbps=_LIKE.l2_gbps / _LIKE.sm_count * slice_.sm_count,
        l2_bytes=float(slice_.l2_bytes),
        link_latency_s=link.link_latency_s,
        tile_s=chip.asym_issue_s,
        launch_s=chip.launch_s,
        source=f"calibration {constants.name}; L2 and fixed costs assumed",
    )
