"""The compile-time choices of the kernel, and the rules of the hardware that they must keep."""

from __future__ import annotations

from dataclasses import dataclass

from pallas_kernels.grouped_gemm.specs import GroupedGemm
from pallas_kernels.hopper import (
    BARRIER_BYTES,
    Epilogue,
    check_registers,
    check_shared_bytes,
    check_tiles,
    epilogue,
    expect,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """Tile sizes, pipeline depth and the launch grid. Changing any of them recompiles.

    A CTA makes `tm` x `tn` outputs at a time with `warpgroups` compute warpgroups, each `tm /
    warpgroups` rows; one more warpgroup issues the loads of `stages` pairs of an X tile (tm x tk)
    and a W tile (tk x tn). A cluster makes `cluster * tm` rows of one expert with one reading of W.

    `sm_count` is the size of the persistent grid: one CTA an SM. CTAs beyond the device's SMs would
    start when the others end; the result stays right and the time doubles.
    """

    tm: int = 64
    tn: int = 128
    tk: int = 64
    stages: int = 8
    warpgroups: int = 1
    compute_registers: int = 232
    load_registers: int = 40
    cluster: int = 1
    sm_count: int = 132

    def __post_init__(self) -> None:
        for name in ("tm", "tn", "tk", "stages", "sm_count"):
            expect(getattr(self, name) >= 1, name, getattr(self, name), "a number above 0")
        check_registers(self.warpgroups, self.compute_registers, self.load_registers)
        check_tiles(
            tm=self.tm,
            tn=self.tn,
            tk=self.tk,
            warpgroups=self.warpgroups,
            cluster=self.cluster,
            sm_count=self.sm_count,
        )

    @property
    def clusters(self) -> int:
        """Clusters in the grid; SMs that do not fill one stay idle."""
        return self.sm_count // self.cluster

    def epilogue(self, itemsize: int) -> Epilogue:
        """Return how a warpgroup stores its tile of elements of `itemsize` bytes."""
        return epilogue(self.warpgroup_rows, self.tn, itemsize)

    @property
    def warpgroup_rows(self) -> int:
        """Rows of a tile that one compute warpgroup owns."""
        return self.tm // self.warpgroups

    @property
    def block_rows(self) -> int:
        """Rows of an expert that one reading of its W serves."""
        return self.tm * self.cluster


def shared_bytes(config: Config, gemm: GroupedGemm) -> int:
    """Return the shared memory of one CTA in bytes: tiles, output slots, barriers."""
    tiles = config.stages * (config.tm + config.tn) * config.tk * gemm.in_itemsize
    slots = config.warpgroups * config.epilogue(gemm.out_itemsize).nbytes(gemm.out_itemsize)
    return tiles + slots + BARRIER_BYTES


def check_fits(config: Config, gemm: GroupedGemm) -> None:
    """Return if one CTA has the shared memory for `config`.

    Raises:
      ValueError: it needs more than `hopper.SHARED_BYTES_LIMIT`.
    """
    check_shared_bytes(shared_bytes(config, gemm), f"stages={config.stages}, tm or tn")
