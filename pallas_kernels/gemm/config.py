"""Compile-time configuration of the kernel."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from types import MappingProxyType

from pallas_kernels.gemm.specs import Gemm
from pallas_kernels.hopper import (
    BARRIER_BYTES,
    CLUSTERS,
    MOST_BARRIERS,
    SWIZZLE_BYTES,
    TMA_BOX,
    WGMMA_ROWS,
    Epilogue,
    check_registers,
    check_shared_bytes,
    epilogue,
    expect,
)
from pallas_kernels.integer_math import round_up

ROW_TILES = (8, 16, 32, 64, 128, 256)
"""Rows of a tile for quantised weights; for others they are multiples of 64."""

SUM_BYTES = 4  # of a partial sum, float32

_K_TILES = (64, 128, 256)
_ALIGNMENT = 1024  # of each ring in shared memory
_ALIGNED_FLOATS = 32  # float32 numbers in 128 bytes
_TWO_ACCUMULATORS = (
    128 * 64
)  # outputs of a warpgroup with a sum and a partial sum: 64 + 64 registers
_ONE_ACCUMULATOR = 256 * 64  # 128 registers
_SUM_SLOTS = 2  # of the ring of sums of X
_MOST_PIECES_K = 128  # of a K step whose pieces have sums of their own
_BARRIER = 8  # bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """Tile sizes, pipeline depths and the launch grid, all compiled in.

    A CTA makes `tm` x `tn` outputs; a K step is a W tile of tk x tn and tk / `x_columns` X tiles of
    tm x x_columns, in `w_stages` and `x_stages` slots.

    - SymGEMM: W runs `w_ahead` K steps ahead, once for the `cluster * tm` rows of a cluster.
    - AsymGEMM (`asym`): W's slots are the `kc` rows of a K pass.

    `warpgroups` share a tile, or take tiles in turn (`ping_pong`). `stagger` shortens the first of
    several K passes by cluster: the last bits then depend on the SM split.

    `sm_count` is the size of the persistent grid, one CTA per SM.
    """

    tm: int = 256
    tn: int = 128
    tk: int = 64
    x_columns: int = 64
    x_stages: int = 4
    w_stages: int = 4
    asym: bool = True
    warpgroups: int = 2
    compute_registers: int = 232
    load_registers: int = 40
    cluster: int = 1
    sm_count: int = 132
    stagger: bool = True
    ping_pong: bool = False

    def __post_init__(self) -> None:
        for name, default in _DEFAULTS.items():
            type_name = "True or False" if type(default) is bool else "a whole number"
            value = getattr(self, name)
            expect(type(value) is type(default), name, value, type_name)
        check_registers(self.warpgroups, self.compute_registers, self.load_registers)
        for name, holds, allowed in (
            ("tm", 0 < self.tm <= TMA_BOX and self.tm % 8 == 0, f"a multiple of 8 up to {TMA_BOX}"),
            (
                "tn",
                0 < self.tn <= TMA_BOX and self.tn % 64 == 0,
                f"a multiple of 64 up to {TMA_BOX}",
            ),
            # a tile is freed when the next one is in use
            ("w_stages", self.w_stages >= 2, "a number above 1"),
            ("x_stages", self.x_stages >= 2, "a number above 1"),
            ("cluster", self.cluster in CLUSTERS, "1, 2, 4 or 8"),
            ("tk", self.tk in _K_TILES, "64, 128 or 256"),
            (
                "x_columns",
                self.x_columns in _K_TILES and self.x_columns <= self.tk,
                f"64, 128 or 256 and at most tk={self.tk}",
            ),
            ("sm_count", self.sm_count >= self.cluster, f"at least cluster={self.cluster}"),
        ):
            expect(holds, name, getattr(self, name), allowed)

    @property
    def clusters(self) -> int:
        """Clusters in the grid; further SMs stay idle."""
        return self.sm_count // self.cluster

    @property
    def block_rows(self) -> int:
        """Rows that SymGEMM computes with one reading of W."""
        return self.tm * self.cluster

    @property
    def x_steps(self) -> int:
        """X tiles for one W tile."""
        return self.tk // self.x_columns

    @property
    def w_ahead(self) -> int:
        """K steps of SymGEMM's W ahead of X."""
        return max(0, self.w_stages - -(-self.x_stages // self.x_steps))

    @property
    def kc(self) -> int:
        """Rows of W of AsymGEMM's K pass, or 0."""
        return self.w_stages * self.tk if self.asym else 0

    @property
    def turns(self) -> int:
        """Number of warpgroups that take tiles in turn."""
        return self.warpgroups if self.ping_pong else 1

    @property
    def warpgroup_rows(self) -> int:
        """Rows of a tile of a compute warpgroup, for unquantised weights."""
        return self.tm * self.turns // self.warpgroups

    @property
    def warpgroup_columns(self) -> int:
        """Columns of a tile of a compute warpgroup, for quantised weights."""
        return self.tn // self.warpgroups


_DEFAULTS = MappingProxyType({field.name: field.default for field in fields(Config)})


def accumulator(config: Config, gemm: Gemm) -> tuple[int, int]:
    """Return a warpgroup's accumulator shape, O's or its transpose's."""
    if gemm.transposed:
        return config.warpgroup_columns, config.tm
    return config.warpgroup_rows, config.tn


def o_epilogue(config: Config, gemm: Gemm) -> Epilogue:
    """Return the epilogue of a warpgroup's part of O."""
    if not gemm.transposed:
        return epilogue(config.warpgroup_rows, config.tn, gemm.out_itemsize)
    rows = min(config.tm, SWIZZLE_BYTES // gemm.out_itemsize)  # a slot has the bytes of one of sums
    pieces = config.tm // rows * (config.warpgroup_columns // WGMMA_ROWS)
    return Epilogue(WGMMA_ROWS, rows, 2 if pieces % 2 == 0 else 1, pieces)


def sums_epilogue(config: Config, gemm: Gemm) -> Epilogue:
    """Return the epilogue of partial sums, through the same shared memory."""
    base = epilogue(*accumulator(config, gemm), SUM_BYTES)
    return Epilogue(base.rows, base.columns, o_epilogue(config, gemm).slots, base.pieces)


def sums_apart(config: Config, gemm: Gemm) -> bool:
    """Return whether AsymGEMM adds partial sums outside a float32 O."""
    if gemm.k <= config.kc or not config.asym:
        return False
    return gemm.out_dtype != "float32" or gemm.transposed or gemm.experts is not None


def piece_size(config: Config, gemm: Gemm) -> int:
    """Return the weights along K with one scale in every K step."""
    return config.tk if gemm.groups == 1 else math.gcd(gemm.group_size, config.tk)


def scales_pieces(config: Config, gemm: Gemm) -> bool:
    """Return whether a K step has several pieces, with own partial sums."""
    return piece_size(config, gemm) < config.tk


def sum_size(config: Config, gemm: Gemm) -> int:
    """Return X's columns summed for an offset's product."""
    return piece_size(config, gemm) if scales_pieces(config, gemm) else gemm.group_size


def scales_weights(config: Config, gemm: Gemm) -> bool:
    """Return whether weights are scaled before the product, to save registers."""
    return gemm.groups > 1 and config.tm * config.warpgroup_columns > _TWO_ACCUMULATORS


@dataclass(frozen=True, slots=True, kw_only=True)
class Rings:
    """Slots in shared memory.

    A block of scales has `scale_rows` groups for `scale_steps` whole K steps.
    """

    x: int
    w: int
    scale_rows: int
    scale_steps: int
    scales: int
    sum_rows: int
    sums: int
    sum_slot_rows: int  # TMA writes to multiples of 128 bytes

    def blocks(self, k_steps: int) -> int:
        """Number of blocks of scales of one item."""
        return -(-k_steps // self.scale_steps)


def rings(config: Config, gemm: Gemm) -> Rings:
    """Return a CTA's slots."""
    k_steps = -(-gemm.k // config.tk)
    rows, steps = 1, k_steps
    if gemm.groups > 1:
        pieces = config.tk // piece_size(config, gemm)
        rows = math.lcm(config.cluster, pieces)
        steps = rows * gemm.group_size // config.tk
    shortest = k_steps % steps or steps
    scales = 1 + max(1, -(-config.w_ahead // shortest))
    if gemm.groups > 1 and config.asym:
        scales = max(scales, config.w_stages // steps)
    sum_rows = rows * gemm.group_size // sum_size(config, gemm)
    return Rings(
        x=config.x_stages,
        w=config.w_stages,
        scale_rows=rows,
        scale_steps=steps,
        scales=scales,
        sum_rows=sum_rows,
        sums=_SUM_SLOTS,
        sum_slot_rows=round_up(sum_rows * config.tm, _ALIGNED_FLOATS) // config.tm,
    )


def pass_unit(config: Config, gemm: Gemm) -> int:
    """Return the unit of AsymGEMM's K passes in K steps: whole blocks of scales."""
    return 1 if gemm.groups == 1 else rings(config, gemm).scale_steps


def shared_bytes(config: Config, gemm: Gemm) -> int:
    """Return a CTA's shared memory bytes: tiles, output slots, barriers."""
    store = o_epilogue(config, gemm).nbytes(gemm.out_itemsize)
    # full and empty of each slot; "empty" of either dataflow
    full = _full(config, gemm)
    ring = rings(config, gemm)
    barriers = sum(full.values()) + sum((1 + config.asym) * getattr(ring, name) for name in full)
    barrier_bytes = max(BARRIER_BYTES, round_up(_BARRIER * barriers, _ALIGNMENT))
    return _tile_bytes(config, gemm) + config.warpgroups * store + barrier_bytes


def _full(config: Config, gemm: Gemm) -> dict[str, int]:
    names = ["x", "w"]
    if gemm.quantised is not None:
        names += ["scales", "sums"] if gemm.quantised.offset_dtype else ["scales"]
    ring = rings(config, gemm)
    return {n: getattr(ring, n) * (config.turns if n in ("x", "w") else 1) for n in names}


def _tile_bytes(config: Config, gemm: Gemm) -> int:
    ring = rings(config, gemm)
    total = ring.w * config.tn * config.tk * gemm.w_bits // 8
    total += ring.x * config.tm * config.x_columns * gemm.in_itemsize
    if gemm.quantised is not None:
        for size in (gemm.quantised.scale_itemsize, gemm.quantised.offset_itemsize):
            total += round_up(ring.scales * ring.scale_rows * config.tn * size, _ALIGNMENT)
        if gemm.quantised.offset_dtype:
            total += round_up(ring.sums * ring.sum_slot_rows * config.tm * 4, _ALIGNMENT)
    return total


def check_fits(config: Config, gemm: Gemm) -> None:
    """Check that `config` can run `gemm`.

    Raises:
      ValueError: no operands of wgmma, or too few registers or shared memory.
    """
    if gemm.quantised is None:
        _check_plain(config)
    else:
        _check_quantised(config, gemm)
    for name, number in _full(config, gemm).items():
        allowed = f"at most {MOST_BARRIERS} slots, of warpgroups in turn half of them"
        expect(number <= MOST_BARRIERS, f"{name}_stages", number, allowed)
    check_shared_bytes(
        shared_bytes(config, gemm), f"x_stages={config.x_stages} or w_stages={config.w_stages}"
    )


def _check_plain(config: Config) -> None:
    rows = WGMMA_ROWS * config.warpgroups // config.turns
    allowed = f"a multiple of {rows} (64 rows a warpgroup) up to {TMA_BOX}"
    expect(config.tm % rows == 0, "tm", config.tm, allowed)
    if config.ping_pong:
        most = _ONE_ACCUMULATOR // config.tn
        expect(config.tm <= most, "tm", config.tm, f"at most {most} for a warpgroup with ping_pong")
    expect(config.tk == 64, "tk", config.tk, "64: one 128-byte swizzled row of a two-byte type")


def _check_quantised(config: Config, gemm: Gemm) -> None:
    kind = gemm.quantised.kind if gemm.quantised else ""
    allowed = "False for quantised weights: a warpgroup converts while another multiplies"
    expect(not config.ping_pong, "ping_pong", config.ping_pong, allowed)
    expect(config.tm in ROW_TILES, "tm", config.tm, f"one of {', '.join(map(str, ROW_TILES))}")
    columns = WGMMA_ROWS * config.warpgroups
    allowed = f"a multiple of {columns} (64 a warpgroup) up to {TMA_BOX}"
    expect(config.tn % columns == 0, "tn", config.tn, allowed)
    width = config.warpgroup_columns
    expect(
        config.tm * width <= _ONE_ACCUMULATOR,
        "tm",
        config.tm,
        f"at most {_ONE_ACCUMULATOR // width}: a warpgroup has registers for {_ONE_ACCUMULATOR} "
        f"float32 sums and has {width} columns",
    )
    smallest = 128 if kind == "int4" else 64
    expect(
        config.tk >= smallest and gemm.k % config.tk == 0,
        "tk",
        config.tk,
        f"at least {smallest} for kind={kind!r} and a divisor of k={gemm.k}",
    )
    if scales_pieces(config, gemm):
        allowed = (
            f"at most {_MOST_PIECES_K} for group={gemm.group_size}: more pieces spill registers"
        )
        expect(config.tk <= _MOST_PIECES_K, "tk", config.tk, allowed)
    two = _TWO_ACCUMULATORS // width
    if config.tm > two and (why := _needs_two_accumulators(config, gemm)):
        raise ValueError(f"tm={config.tm}: expected at most {two} for {why}")
    if config.asym:
        expect(config.tm >= 64, "tm", config.tm, "at least 64 with AsymGEMM, asym=True")
        unit = pass_unit(config, gemm)
        allowed = f"a multiple of {unit} with AsymGEMM: whole groups"
        expect(config.w_stages % unit == 0, "w_stages", config.w_stages, allowed)


def most_rows(gemm: Gemm, tk: int) -> int:
    """Return the largest row tile for quantised weights, at 64 columns a warpgroup."""
    config = Config(tm=max(ROW_TILES), tk=tk, asym=False)
    return _TWO_ACCUMULATORS // WGMMA_ROWS if _needs_two_accumulators(config, gemm) else config.tm


def _needs_two_accumulators(config: Config, gemm: Gemm) -> str:
    if scales_pieces(config, gemm):
        return f"group={gemm.group_size}, no multiple of tk={config.tk}"
    if gemm.quantised is not None and gemm.quantised.offset_dtype:
        return "weights with offsets"
    if gemm.groups > 1 and gemm.dtype == "float16":
        return "groups and dtype='float16', whose range is too small for scaled weights"
    return ""
