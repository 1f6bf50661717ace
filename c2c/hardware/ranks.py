"""Several equal GPUs as one device: the ranks of an engine."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from c2c.hardware.cutting import Slice
from c2c.hardware.platform import LinkVariant, Platform, Ranks, link_gbps
from c2c.ranges import Count, check_value

__all__ = ["grouped", "one_rank"]

# An all-reduce takes hop_s * (1 + log2(ranks)) plus its wire bytes at a share of the rate. Fitted
# by hand to vLLM's fastest all-reduces on H100 SXM, so in-sample, within 26 %: over eight GPUs 512
# KiB to 32 MiB take 11 to 165 us (vllm-project/vllm pull request 42324), over four 512 KiB to 4 MiB
# 10 to 28 us (24532), over two 512 KiB 7 us (24111). For comparison: 4 KiB over two, four and eight
# take 4, 4 and 6 us in SGLang's kernel, 9 us in vLLM's of that time (sgl-project/sglang 2904).
NVLINK_HOP_S: Final = 2.2e-6
NVLINK_SHARE: Final = 0.78  # of the datasheet's rate each way
# 8 KiB over eight A800 behind PCIe take 46 microseconds (vllm-project/vllm issue 50576); large ones
# over eight H100 behind PCIe 5.0 go at 35 to 45 of 55 GB/s (a reference table of nccl-tests).
PCIE_HOP_S: Final = 12.0e-6
PCIE_SHARE: Final = 0.73  # of the link's measured rate


def grouped(
    platform: Platform, count: int, *, variant: LinkVariant, experts_apart: bool = False
) -> Platform:
    """Return several GPUs of a platform, each with its host and link, as one device.

    Bytes, rates, watts and prices are sums over the GPUs. Collectives use NVLink if the GPU's file
    states `nvlink_gbps`, else the links to the hosts.

    Args:
      platform: one GPU.
      count: number of GPUs; 1 returns the platform itself.
      variant: variant of the link's rate.
      experts_apart: see `Ranks`.

    Raises:
      SettingError: a count below 1.
    """
    check_value(count, Count, "tensor_parallel")
    if count == 1:
        return platform
    gpu, host, link = platform.gpu, platform.host, platform.link
    nvlink = gpu.nvlink_gbps
    over_gbps, share, hop_s = (
        (nvlink, NVLINK_SHARE, NVLINK_HOP_S)
        if nvlink is not None
        else (link_gbps(link, variant), PCIE_SHARE, PCIE_HOP_S)
    )
    return replace(
        platform,
        gpu=replace(gpu, **_times(count, gpu, (
            "sm_count", "hbm_bytes", "hbm_gbps", "bf16_tflops", "l2_bytes", "fp32_tflops",
            "l2_gbps", "price", "usd_per_hour", "power_w", "idle_w",
        ))),
        host=replace(host, **_times(count, host, ("memory_bytes", "memory_gbps", "disk_gbps"))),
        link=replace(link, **_times(
            count, link, (
                "datasheet_gbps", "measured_gbps", "both_directions_gbps", "sm_read_low_gbps",
                "sm_read_high_gbps",
            )
        )),
        mig=platform.mig[:1],
        mig_more=(),
        partition=None,
        ranks=Ranks(
            count=count, gbps=over_gbps * share, hop_s=hop_s, over_link=nvlink is None,
            experts_apart=experts_apart,
        ),
    )  # fmt: skip


def one_rank(slice_: Slice) -> Slice:
    """Return one GPU's part of a device; a single GPU is returned unchanged."""
    if slice_.ranks is None:
        return slice_
    n = slice_.ranks.count
    return replace(
        slice_, sm_count=slice_.sm_count // n, hbm_bytes=slice_.hbm_bytes // n,
        hbm_gbps=slice_.hbm_gbps / n, bf16_tflops=slice_.bf16_tflops / n,
        l2_bytes=slice_.l2_bytes // n, link_cap_gbps=slice_.link_cap_gbps / n, ranks=None,
    )  # fmt: skip


def _times(count: int, of: object, names: tuple[str, ...]) -> dict[str, Any]:
    found = {name: getattr(of, name) for name in names}
    return {name: count * value for name, value in found.items() if value is not None}
