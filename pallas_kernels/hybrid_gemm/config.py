"""The compile-time choices of the kernel, and the rules of the hardware that they must keep."""

from __future__ import annotations

from dataclasses import dataclass

from pallas_kernels.hopper import (
    BARRIER_BYTES,
    Epilogue,
    check_registers,
    check_shared_bytes,
    check_tiles,
    epilogue,
    expect,
)
from pallas_kernels.hybrid_gemm.specs import Gemm


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """Tile sizes, pipeline depths and the launch grid. Changing any of them recompiles.

    A CTA makes `tm` x `tn` outputs at a time with `warpgroups` compute warpgroups, each `tm /
    warpgroups` rows; one more warpgroup issues the loads. The two dataflows share shared memory:

    - SymGEMM holds `sym_stages` pairs of an X tile (tm x tk) and a W tile (tk x tn);
    - AsymGEMM holds `asym_stages` X tiles and a resident W tile of kc x tn, as kc / tk slices.

    `stagger` shortens the first K pass of AsymGEMM by a different amount in each cluster, so that
    they do not all refill their W tile at the same moment. Where K needs more than one pass, the
    boundaries of the passes, and so the last bits of the result, then depend on the SM split.

    `sm_count` is the size of the persistent grid: one CTA an SM. CTAs beyond the device's SMs would
    start when the others end; the result stays right and the time doubles.
    """

    tm: int = 256
    tn: int = 128
    tk: int = 64
    sym_stages: int = 4
    kc: int = 512
    asym_stages: int = 2
    warpgroups: int = 2
    compute_registers: int = 232
    load_registers: int = 40
    cluster: int = 1
    sm_count: int = 132
    stagger: bool = True

    def __post_init__(self) -> None:
        for name in ("tm", "tn", "tk", "sym_stages", "kc", "asym_stages", "sm_count"):
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
        expect(self.kc % self.tk == 0, "kc", self.kc, f"a multiple of tk={self.tk}")

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
    def ring(self) -> int:
        """Slices of the resident W tile."""
        return self.kc // self.tk


def shared_bytes(config: Config, gemm: Gemm) -> int:
    """Return the shared memory of one CTA in bytes: the larger dataflow, output slots, barriers."""
    sym = config.sym_stages * (config.tm + config.tn) * config.tk
    asym = config.asym_stages * config.tm * config.tk + config.kc * config.tn
    slots = config.warpgroups * config.epilogue(gemm.out_itemsize).nbytes(gemm.out_itemsize)
    return max(sym, asym) * gemm.in_itemsize + slots + BARRIER_BYTES


def check_fits(config: Config, gemm: Gemm) -> None:
    """Return if one CTA has the shared memory for `config`.

    Raises:
      ValueError: it needs more than `hopper.SHARED_BYTES_LIMIT`.
    """
    check_shared_bytes(
        shared_bytes(config, gemm),
        f"sym_stages={config.sym_stages}, kc={config.kc} or asym_stages={config.asym_stages}",
    )
