"""Descriptions of absent GPUs for XLA."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from c2c.hardware import load_platform

__all__ = ["TARGETS", "XlaTarget"]


@dataclass(frozen=True, slots=True, kw_only=True)
class XlaTarget:
    """Facts for XLA beyond `conf/hardware`.

    Attributes:
      capability: (major, minor).
      architecture: assemblers' name, such as `sm_90a`.
      threads_per_sm: most resident ones.

    Source: CUDA programming guide, "Technical specifications per compute capability".
    """

    hardware: str
    capability: tuple[int, int]
    architecture: str
    threads_per_sm: int

    def description(self) -> str:
        """Return the target of XLA's deviceless compilation, as text."""
        gpu = load_platform(self.hardware).gpu
        major, minor = self.capability
        # The system reserves 1 KiB of an SM's shared memory; one block may opt in to the rest.
        return f"""
gpu_device_info {{
  threads_per_block_limit: 1024 threads_per_warp: 32 shared_memory_per_block: 49152
  shared_memory_per_core: {gpu.smem_per_sm_bytes} threads_per_core_limit: {self.threads_per_sm}
  core_count: {gpu.sm_count} fpus_per_core: {64 if self.capability == (8, 0) else 128}
  block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
  memory_bandwidth: {int(gpu.hbm_gbps * 1e9)} l2_cache_size: {gpu.l2_bytes}
  clock_rate_ghz: {gpu.clock_ghz} device_memory_size: {gpu.hbm_bytes}
  shared_memory_per_block_optin: {gpu.smem_per_sm_bytes - 1024}
  cuda_compute_capability {{ major: {major} minor: {minor} }} registers_per_core_limit: 65536
  registers_per_block_limit: 65536
}}
runtime_version {{ major: 13 }} platform_name: "CUDA" dnn_version_info {{ major: 9 minor: 12 }}
device_description_str: "{gpu.name}"
"""


def _target(
    hardware: str, capability: tuple[int, int], architecture: str, threads: int
) -> XlaTarget:
    return XlaTarget(
        hardware=hardware, capability=capability, architecture=architecture,
        threads_per_sm=threads,
    )  # fmt: skip


TARGETS: Mapping[str, XlaTarget] = MappingProxyType(
    {
        target.hardware: target
        for target in (
            _target("a100_80", (8, 0), "sm_80", 2048),
            _target("l40s", (8, 9), "sm_89", 1536),
            _target("h100_sxm", (9, 0), "sm_90a", 2048),
            _target("b200", (10, 0), "sm_100a", 2048),
            _target("rtx_pro_6000", (12, 0), "sm_120a", 1536),
        )
    }
)
"""Targets by name in `conf/hardware`, oldest first; PTX of the first assembles for all others."""
