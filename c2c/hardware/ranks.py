"""Equal GPUs as one device."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from c2c.hardware.conf import conf_names, read_yaml
from c2c.hardware.platform import LinkVariant, Platform, Ranks, link_gbps
from c2c.hardware.slices import Slice
from c2c.ranges import Count, check_value

__all__ = ["collectives_chip", "grouped", "one_rank"]

# Chips without a file in conf/collectives have these, as shares of their own links.
NVLINK_LIKE: Final = "h100_sxm"
PCIE_LIKE: Final = "rtx_pro_6000"


def collectives_chip(platform: Platform) -> str:
    """Return the chip whose measured all-reduces a platform has."""
    name = platform.name
    if name not in conf_names("collectives"):
        name = NVLINK_LIKE if platform.gpu.nvlink_gbps is not None else PCIE_LIKE
    return str(read_yaml("collectives", name).get("like", name))


def _collective(platform: Platform, count: int) -> tuple[float, float]:
    data: dict[Any, Any] = read_yaml("collectives", collectives_chip(platform))
    sizes = sorted(data)
    entry = data[next((n for n in sizes if n >= count), sizes[-1])]
    return float(entry["latency_s"]), float(entry["share"])


def grouped(
    platform: Platform, count: int, *, variant: LinkVariant, experts_apart: bool = False
) -> Platform:
    """Return several GPUs, each with host and link, as one device of their sums.

    Collectives use NVLink if the GPU's file states `nvlink_gbps`, else the hosts' links.

    Args:
      count: 1 returns the platform itself.
      variant: variant of the link's rate.

    Raises:
      SettingError: a count below 1.
    """
    check_value(count, Count, "tensor_parallel")
    if count == 1:
        return platform
    gpu, host, link = platform.gpu, platform.host, platform.link
    nvlink = gpu.nvlink_gbps
    over_gbps = nvlink if nvlink is not None else link_gbps(link, variant)
    latency_s, share = _collective(platform, count)
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
            count=count, gbps=over_gbps * share, latency_s=latency_s, over_link=nvlink is None,
            experts_apart=experts_apart,
        ),
    )  # fmt: skip


def one_rank(slice_: Slice) -> Slice:
    """Return one GPU's part of a device."""
    if slice_.ranks is None:
        return slice_
    n = slice_.ranks.count
    return replace(
        slice_, sm_count=slice_.sm_count // n, hbm_bytes=slice_.hbm_bytes // n,
        hbm_gbps=slice_.hbm_gbps / n, bf16_tflops=slice_.bf16_tflops / n,
        l2_bytes=slice_.l2_bytes // n, link_cap_gbps=slice_.link_cap_gbps / n, ranks=None,
    )  # fmt: skip


def _times(count: int, part: object, names: tuple[str, ...]) -> dict[str, Any]:
    values = {name: getattr(part, name) for name in names}
    return {name: count * value for name, value in values.items() if value is not None}
