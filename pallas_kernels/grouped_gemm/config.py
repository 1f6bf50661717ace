"""The compile-time choices of the kernel, and the rules of the hardware that they must keep."""

from __future__ import annotations

from dataclasses import dataclass

from pallas_kernels.grouped_gemm.specs import GroupedGemm
from pallas_kernels.hopper import (
    BARRIER_BYTES,
    CLUSTERS,
    SWIZZLE_BYTES,
    TMA_BOX,
    WGMMA_ROWS,
    check_registers,
    check_shared_bytes,
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
        expect(self.cluster in CLUSTERS, "cluster", self.cluster, "1, 2, 4 or 8")
        rows = WGMMA_ROWS * self.warpgroups
        expect(
            self.tm % rows == 0 and self.tm <= TMA_BOX,  # one X tile is one box
            "tm",
            self.tm,
            f"a multiple of {rows} (64 rows a warpgroup) up to {TMA_BOX}",
        )
        expect(
            self.tn % 64 == 0 and self.tn <= TMA_BOX, "tn", self.tn, "a multiple of 64 up to 256"
        )
        expect(self.tk == 64, "tk", self.tk, "64: one 128-byte swizzled row of a two-byte type")
        expect(
            self.sm_count >= self.cluster,
            "sm_count",
            self.sm_count,
            f"at least cluster={self.cluster}",
        )

    @property
    def clusters(self) -> int:
        """Clusters in the grid; SMs that do not fill one stay idle."""
        return self.sm_count // self.cluster

    @property
    def warpgroup_rows(self) -> int:
        """Rows of a tile that one compute warpgroup owns."""
        return self.tm // self.warpgroups

    @property
    def block_rows(self) -> int:
        """Rows of an expert that one reading of its W serves."""
        return self.tm * self.cluster


@dataclass(frozen=True, slots=True)
class Epilogue:
    """Pieces in which a warpgroup stores its tile: `rows` x `columns` each, through `slots`."""

    rows: int
    columns: int
    slots: int
    pieces: int


def epilogue(config: Config, gemm: GroupedGemm) -> Epilogue:
    """Return how a warpgroup stores its tile.

    A piece is one swizzled row wide. A slot is used again once all but `slots - 1` stores have left
    it, which holds across tiles only if the pieces of a tile fill all slots equally often.
    """
    columns = SWIZZLE_BYTES // gemm.out_itemsize
    pieces = (config.warpgroup_rows // WGMMA_ROWS) * (config.tn // columns)
    return Epilogue(WGMMA_ROWS, columns, 2 if pieces % 2 == 0 else 1, pieces)


def shared_bytes(config: Config, gemm: GroupedGemm) -> int:
    """Return the shared memory of one CTA in bytes: tiles, output slots, barriers."""
    tiles = config.stages * (config.tm + config.tn) * config.tk * gemm.in_itemsize
    store = epilogue(config, gemm)
    slots = config.warpgroups * store.slots * store.rows * store.columns * gemm.out_itemsize
    return tiles + slots + BARRIER_BYTES


def check_fits(config: Config, gemm: GroupedGemm) -> None:
    """Return if one CTA has the shared memory for `config`.

    Raises:
      ValueError: it needs more than `hopper.SHARED_BYTES_LIMIT`.
    """
    check_shared_bytes(shared_bytes(config, gemm), f"stages={config.stages}, tm or tn")
