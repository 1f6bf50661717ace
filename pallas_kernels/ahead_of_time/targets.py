"""Descriptions of absent GPUs for the compiler."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from pallas_kernels.hopper import SHARED_BYTES_LIMIT


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A GPU, or a slice of one, of compute capability 9.0."""

    name: str  # how it is chosen
    kind: str  # the vendor's name, as jax reports it
    sm_count: int
    memory_bytes: int
    memory_gbps: float
    l2_bytes: int
    clock_ghz: float

    def description(self) -> str:
        """Return the text for XLA's deviceless compiler."""
        return f"""
gpu_device_info {{
  threads_per_block_limit: 1024 threads_per_warp: 32 shared_memory_per_block: 49152
  shared_memory_per_core: 233472 threads_per_core_limit: 2048 core_count: {self.sm_count}
  fpus_per_core: 128 block_dim_limit_x: 2147483647 block_dim_limit_y: 65535
  block_dim_limit_z: 65535 memory_bandwidth: {int(self.memory_gbps * 1e9)}
  l2_cache_size: {self.l2_bytes} clock_rate_ghz: {self.clock_ghz}
  device_memory_size: {self.memory_bytes} shared_memory_per_block_optin: {SHARED_BYTES_LIMIT}
  cuda_compute_capability {{ major: 9 }} registers_per_core_limit: 65536
  registers_per_block_limit: 65536
}}
runtime_version {{ major: 13 }} platform_name: "CUDA" dnn_version_info {{ major: 9 minor: 12 }}
device_description_str: "{self.kind}"
"""


_H200 = Target(
    name="h200",
    kind="NVIDIA H200",
    sm_count=132,
    memory_bytes=150_754_820_096,
    memory_gbps=4800.0,
    l2_bytes=62_914_560,
    clock_ghz=1.98,
)
_H100 = replace(
    _H200,
    name="h100",
    kind="NVIDIA H100 80GB HBM3",
    memory_bytes=85_044_887_552,
    memory_gbps=3350.0,
    l2_bytes=52_428_800,
)
_SLICE = replace(
    _H200,
    name="h200_16sm",
    kind="NVIDIA H200 MIG 1g.18gb",
    sm_count=16,
    memory_bytes=_H200.memory_bytes // 8,
    memory_gbps=_H200.memory_gbps / 8,
    l2_bytes=_H200.l2_bytes // 8,
)

TARGETS: Mapping[str, Target] = MappingProxyType({t.name: t for t in (_H200, _H100, _SLICE)})
"""By name: two whole GPUs, and the smallest MIG slice of one."""
