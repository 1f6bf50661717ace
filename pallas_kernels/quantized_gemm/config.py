"""The compile-time choices of the kernel, and the rules of the hardware that they must keep."""

from __future__ import annotations

import math
from dataclasses import dataclass

from pallas_kernels.counting import round_up
from pallas_kernels.hopper import (
    BARRIER_BYTES,
    CLUSTERS,
    TMA_BOX,
    WGMMA_ROWS,
    check_registers,
    check_shared_bytes,
    expect,
)
from pallas_kernels.quantized_gemm.specs import QuantizedGemm, bits

ROW_TILES = (8, 16, 32, 64, 128, 256)

_ALIGNMENT = 1024  # of each ring in shared memory
_ALIGNED_FLOATS = 32  # float32 numbers in 128 bytes
_STORE_ROWS = 64  # rows of O in one store
_TWO_ACCUMULATORS = (
    128 * 64
)  # outputs of a warpgroup with a sum and a partial sum: 64 + 64 registers
_ONE_ACCUMULATOR = 256 * 64  # 128 registers


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """Tile sizes, pipeline depth and the launch grid. Changing any of them recompiles.

    A CTA makes `tm` x `tn` outputs at a time with `warpgroups` compute warpgroups, each `tn /
    warpgroups` columns (rows of the transposed product); one more warpgroup issues the loads:

    - W tiles of tn x tk through a ring of `w_stages`, and their scales through another;
    - X tiles of tm x `x_columns` through a ring of `x_stages`.

    W comes from far away and is small, X from the L2 and large: W may run `w_ahead` K steps ahead.
    A cluster makes `cluster * tm` rows with one reading of W.

    `sm_count` is the size of the persistent grid: one CTA an SM. CTAs beyond the device's SMs would
    start when the others end; the result stays right and the time doubles.
    """

    tm: int = 64
    tn: int = 128
    tk: int = 128
    w_stages: int = 6
    x_columns: int = 128
    x_stages: int = 6
    warpgroups: int = 2
    compute_registers: int = 232
    load_registers: int = 40
    cluster: int = 1
    sm_count: int = 132

    def __post_init__(self) -> None:
        for name in ("w_stages", "x_stages"):  # a tile is freed when the next one is in use
            expect(getattr(self, name) >= 2, name, getattr(self, name), "a number above 1")
        expect(self.sm_count >= 1, "sm_count", self.sm_count, "a number above 0")
        check_registers(self.warpgroups, self.compute_registers, self.load_registers)
        expect(self.cluster in CLUSTERS, "cluster", self.cluster, "1, 2, 4 or 8")
        expect(self.tm in ROW_TILES, "tm", self.tm, f"one of {', '.join(map(str, ROW_TILES))}")
        columns = WGMMA_ROWS * self.warpgroups
        expect(
            0 < self.tn <= TMA_BOX and self.tn % columns == 0,
            "tn",
            self.tn,
            f"a multiple of {columns} (64 a warpgroup) up to {TMA_BOX}",
        )
        expect(self.tk in (64, 128, 256), "tk", self.tk, "64, 128 or 256")
        expect(
            self.x_columns in (64, 128, 256) and self.x_columns <= self.tk,
            "x_columns",
            self.x_columns,
            f"64, 128 or 256 and at most tk={self.tk}",
        )
        expect(
            self.tm * self.warpgroup_columns <= _ONE_ACCUMULATOR,
            "tm",
            self.tm,
            f"at most {_ONE_ACCUMULATOR // self.warpgroup_columns}: a warpgroup has registers for "
            f"{_ONE_ACCUMULATOR} float32 sums and has {self.warpgroup_columns} columns",
        )
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
    def x_steps(self) -> int:
        """X tiles for one W tile."""
        return self.tk // self.x_columns

    @property
    def w_ahead(self) -> int:
        """K steps by which loads of W run ahead of those of X: what the ring of X leaves free."""
        return max(0, self.w_stages - -(-self.x_stages // self.x_steps))

    @property
    def warpgroup_columns(self) -> int:
        """Columns of a tile that one compute warpgroup owns."""
        return self.tn // self.warpgroups

    @property
    def store_rows(self) -> int:
        """Rows of O in one store; a piece is 64 columns wide."""
        return min(self.tm, _STORE_ROWS)

    @property
    def store_pieces(self) -> int:
        """Stores of one warpgroup for a tile."""
        return self.tm // self.store_rows * (self.warpgroup_columns // WGMMA_ROWS)

    @property
    def store_slots(self) -> int:
        """Staging slots of a warpgroup; the pieces of a tile fill each equally often."""
        return 2 if self.store_pieces % 2 == 0 else 1


def piece_size(config: Config, gemm: QuantizedGemm) -> int:
    """Return how many weights along K have one scale within every K step.

    A K step inside of one group has its partial sums scaled when the group ends. Where groups are
    smaller, or do not end with K steps, the partial sums of each piece are scaled.
    """
    return config.tk if gemm.group is None else math.gcd(gemm.group, config.tk)


def scales_pieces(config: Config, gemm: QuantizedGemm) -> bool:
    """Whether a K step has several pieces, each with partial sums of its own."""
    return piece_size(config, gemm) < config.tk


def sum_size(config: Config, gemm: QuantizedGemm) -> int:
    """Return how many columns of X are summed for the product with an offset."""
    pieces = scales_pieces(config, gemm)
    return piece_size(config, gemm) if pieces else gemm.group_size


def scales_weights(config: Config, gemm: QuantizedGemm) -> bool:
    """Whether weights are scaled before the product and rounded, for want of registers.

    A column's only scale is applied to the finished sum. With groups, the partial sum of a group is
    scaled in float32 and added to the sum: two accumulators. Where they do not fit (256 rows), the
    weights are scaled in float32 and rounded to the type of X before the product.
    """
    return gemm.groups > 1 and config.tm * config.warpgroup_columns > _TWO_ACCUMULATORS


def scale_rows(config: Config, gemm: QuantizedGemm) -> int:
    """Return the rows of scales that are loaded at a time: those of whole K steps.

    Of a cluster each CTA loads and multicasts whole rows, since a part of one may be too short for
    TMA. A column's only scale is loaded by every CTA.
    """
    if gemm.groups == 1:
        return 1
    return math.lcm(config.cluster, config.tk // piece_size(config, gemm))


def scale_steps(config: Config, gemm: QuantizedGemm) -> int:
    """Return the K steps for which scales are loaded at a time."""
    return scale_rows(config, gemm) * gemm.group_size // config.tk


def sum_rows(config: Config, gemm: QuantizedGemm) -> int:
    """Return the rows of sums of X that are loaded at a time, for as many K steps as scales."""
    return scale_rows(config, gemm) * gemm.group_size // sum_size(config, gemm)


def sum_slot_rows(config: Config, gemm: QuantizedGemm) -> int:
    """Return the rows of a slot of the ring of sums: TMA writes to multiples of 128 bytes."""
    return round_up(sum_rows(config, gemm) * config.tm, _ALIGNED_FLOATS) // config.tm


def scale_stages(config: Config, gemm: QuantizedGemm) -> int:
    """Return the slots of the ring of scales, so that loading W never waits for one of them."""
    steps = scale_steps(config, gemm)
    shortest = gemm.k // config.tk % steps or steps  # K steps of a slot
    return 1 + max(1, -(-config.w_ahead // shortest))


def shared_bytes(config: Config, gemm: QuantizedGemm) -> int:
    """Return the shared memory of one CTA in bytes: rings, output slots, barriers."""
    w_tile = config.tn * config.tk * bits(gemm.kind) // 8
    x_tile = config.tm * config.x_columns * gemm.x_itemsize
    piece = config.store_rows * WGMMA_ROWS * gemm.out_itemsize
    slots = config.warpgroups * config.store_slots * piece
    tiles = config.w_stages * w_tile + config.x_stages * x_tile
    return tiles + sum(_scale_ring_bytes(config, gemm)) + slots + BARRIER_BYTES


def _scale_ring_bytes(config: Config, gemm: QuantizedGemm) -> tuple[int, int, int]:
    """Bytes of the rings of scales, of offsets, and of the sums of X for them."""
    stages, rows = scale_stages(config, gemm), scale_rows(config, gemm)
    scales, offsets = (
        round_up(stages * rows * config.tn * size, _ALIGNMENT)
        for size in (gemm.scale_itemsize, gemm.offset_itemsize)
    )
    sums = round_up(stages * sum_slot_rows(config, gemm) * config.tm * 4, _ALIGNMENT)
    return scales, offsets, sums if gemm.offset_dtype else 0


def check_fits(config: Config, gemm: QuantizedGemm) -> None:
    """Return if `config` can run `gemm`.

    Raises:
      ValueError: K is not whole K steps, or a CTA lacks registers or shared memory.
    """
    smallest = 128 if gemm.kind == "int4" else 64
    expect(
        config.tk >= smallest and gemm.k % config.tk == 0,
        "tk",
        config.tk,
        f"at least {smallest} for kind={gemm.kind!r} and a divisor of k={gemm.k}",
    )
    two = _TWO_ACCUMULATORS // config.warpgroup_columns
    if config.tm > two and (why := _needs_two_accumulators(config, gemm)):
        raise ValueError(f"tm={config.tm}: expected at most {two} for {why}")
    check_shared_bytes(
        shared_bytes(config, gemm),
        f"w_stages={config.w_stages} or x_stages={config.x_stages}",
    )


def most_rows(gemm: QuantizedGemm, tk: int) -> int:
    """Return the largest row tile for a GEMM, with 64 columns a warpgroup and K steps of `tk`."""
    config = Config(tm=max(ROW_TILES), tk=tk, x_columns=64)
    return _TWO_ACCUMULATORS // WGMMA_ROWS if _needs_two_accumulators(config, gemm) else config.tm


def _needs_two_accumulators(config: Config, gemm: QuantizedGemm) -> str:
    """Say why weights cannot be scaled before the product; empty if they can."""
    if scales_pieces(config, gemm):
        return f"group={gemm.group}, no multiple of tk={config.tk}"
    if gemm.offset_dtype:
        return "weights with offsets"
    if gemm.groups > 1 and gemm.dtype == "float16":
        return "groups and dtype='float16', whose range is too small for scaled weights"
    return ""
