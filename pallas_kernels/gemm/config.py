"""Compile-time configuration of the kernel, and the hardware rules that it must keep."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import Literal

from pallas_kernels.counting import round_up
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

Dataflow = Literal["sym", "asym"]

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
    """Tile sizes, pipeline depths and the launch grid. Changing any of them recompiles.

    A CTA makes `tm` x `tn` outputs at a time with `warpgroups` compute warpgroups, which share the
    rows of a tile (its columns where weights are quantised); one more warpgroup issues the loads.
    With `ping_pong` each of them makes whole tiles, in turn, so that one rounds and stores its tile
    while the tensor cores have those of another.
    A K step needs a W tile of tk x tn and tk / `x_columns` X tiles of tm x x_columns. The two
    dataflows use the same shared memory:

    - SymGEMM holds `x_stages` X tiles and `w_stages` W tiles. W may run `w_ahead` K steps ahead, to
      hide the latency of the link. A cluster makes `cluster * tm` rows with one reading of W.
    - AsymGEMM holds `asym_stages` X tiles and kc rows of W, as kc / tk tiles. With kc = 0 the
      kernel has no AsymGEMM.

    `stagger` shortens the first K pass of AsymGEMM by a different amount in each cluster, so that
    they do not all refill their W tiles at the same moment. If K needs more than one pass, the
    boundaries of the passes, and so the last bits of the result, then depend on the SM split.

    `sm_count` is the size of the persistent grid: one CTA per SM. CTAs beyond the device's SMs
    start when the others end; the result stays right and the time doubles.
    """

    tm: int = 256
    tn: int = 128
    tk: int = 64
    x_columns: int = 64
    x_stages: int = 4
    w_stages: int = 4
    kc: int = 512
    asym_stages: int = 2
    warpgroups: int = 2
    compute_registers: int = 232
    load_registers: int = 40
    cluster: int = 1
    sm_count: int = 132
    stagger: bool = True
    ping_pong: bool = False

    def __post_init__(self) -> None:
        for name, default in _DEFAULTS.items():
            what = "True or False" if type(default) is bool else "a whole number"
            value = getattr(self, name)
            expect(type(value) is type(default), name, value, what)
        check_registers(self.warpgroups, self.compute_registers, self.load_registers)
        for name, holds, allowed in (
            ("tm", 0 < self.tm <= TMA_BOX and self.tm % 8 == 0, f"a multiple of 8 up to {TMA_BOX}"),
            (
                "tn",
                0 < self.tn <= TMA_BOX and self.tn % 64 == 0,
                f"a multiple of 64 up to {TMA_BOX}",
            ),
            # a tile is freed when the next one is in use
            ("asym_stages", self.asym_stages >= 2, "a number above 1"),
            ("w_stages", self.w_stages >= 2, "a number above 1"),
            ("x_stages", self.x_stages >= 2, "a number above 1"),
            ("cluster", self.cluster in CLUSTERS, "1, 2, 4 or 8"),
            ("tk", self.tk in _K_TILES, "64, 128 or 256"),
            (
                "x_columns",
                self.x_columns in _K_TILES and self.x_columns <= self.tk,
                f"64, 128 or 256 and at most tk={self.tk}",
            ),
            (
                "kc",
                self.kc >= 0 and self.kc % self.tk == 0,
                f"0, for no AsymGEMM, or a multiple of tk={self.tk}",
            ),
            ("sm_count", self.sm_count >= self.cluster, f"at least cluster={self.cluster}"),
        ):
            expect(holds, name, getattr(self, name), allowed)

    @property
    def clusters(self) -> int:
        """Number of clusters in the grid; SMs that do not fill one stay idle."""
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
        """K steps by which SymGEMM loads W ahead of X: slots of W beyond those of X."""
        return max(0, self.w_stages - -(-self.x_stages // self.x_steps))

    @property
    def ring(self) -> int:
        """Number of W tiles that AsymGEMM holds."""
        return self.kc // self.tk

    @property
    def turns(self) -> int:
        """Number of warpgroups that take tiles in turn."""
        return self.warpgroups if self.ping_pong else 1

    @property
    def warpgroup_rows(self) -> int:
        """Rows of a tile that one compute warpgroup owns, for weights that are not quantised."""
        return self.tm * self.turns // self.warpgroups

    @property
    def warpgroup_columns(self) -> int:
        """Columns of a tile that one compute warpgroup owns, for quantised weights."""
        return self.tn // self.warpgroups


_DEFAULTS = MappingProxyType({field.name: field.default for field in fields(Config)})


def accumulator(config: Config, gemm: Gemm) -> tuple[int, int]:
    """Return the shape of a warpgroup's accumulator: rows x columns of O, or of its transpose."""
    if gemm.transposed:
        return config.warpgroup_columns, config.tm
    return config.warpgroup_rows, config.tn


def o_epilogue(config: Config, gemm: Gemm) -> Epilogue:
    """Return the epilogue of a warpgroup's part of a tile of O: pieces of its accumulator."""
    if not gemm.transposed:
        return epilogue(config.warpgroup_rows, config.tn, gemm.out_itemsize)
    rows = min(config.tm, SWIZZLE_BYTES // gemm.out_itemsize)  # a slot has the bytes of one of sums
    pieces = config.tm // rows * (config.warpgroup_columns // WGMMA_ROWS)
    return Epilogue(WGMMA_ROWS, rows, 2 if pieces % 2 == 0 else 1, pieces)


def sums_epilogue(config: Config, gemm: Gemm) -> Epilogue:
    """Return the epilogue of partial sums, through the same shared memory."""
    found = epilogue(*accumulator(config, gemm), SUM_BYTES)
    return Epilogue(found.rows, found.columns, o_epilogue(config, gemm).slots, found.pieces)


def sums_apart(config: Config, gemm: Gemm) -> bool:
    """Return True if AsymGEMM adds partial sums in separate memory, False if in a float32 O.

    Sums of tiles that are stored by rows, or transposed, are always separate.
    """
    if config.kc == 0 or -(-gemm.k // config.tk) <= config.ring:
        return False
    return gemm.out_dtype != "float32" or gemm.transposed or gemm.experts is not None


def piece_size(config: Config, gemm: Gemm) -> int:
    """Return the number of weights along K with one scale within every K step.

    Partial sums of K steps within one group are scaled when the group ends. If groups are smaller,
    or do not end with K steps, the partial sums of each piece are scaled.
    """
    return config.tk if gemm.groups == 1 else math.gcd(gemm.group_size, config.tk)


def scales_pieces(config: Config, gemm: Gemm) -> bool:
    """Return True if a K step has several pieces, each with its own partial sums."""
    return piece_size(config, gemm) < config.tk


def sum_size(config: Config, gemm: Gemm) -> int:
    """Return the number of columns of X that are summed for the product with an offset."""
    return piece_size(config, gemm) if scales_pieces(config, gemm) else gemm.group_size


def scales_weights(config: Config, gemm: Gemm) -> bool:
    """Return True if weights are scaled and rounded before the product, to save registers.

    A column's only scale is applied to the finished sum. With groups, the partial sum of a group is
    scaled in float32 and added to the sum: two accumulators. If they do not fit (256 rows), the
    weights are scaled in float32 and rounded to the type of X before the product.
    """
    return gemm.groups > 1 and config.tm * config.warpgroup_columns > _TWO_ACCUMULATORS


@dataclass(frozen=True, slots=True, kw_only=True)
class Rings:
    """Slots of one dataflow in shared memory.

    Scales are in blocks of `scale_rows` groups, which are `scale_steps` whole K steps; a column's
    only scale is a block for all of K. Sums of X, for offsets, are in as many blocks.
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


def rings(config: Config, gemm: Gemm, flow: Dataflow) -> Rings:
    """Return the slots of a dataflow.

    In SymGEMM each CTA of a cluster loads and multicasts whole rows of scales, since a part of one
    may be too short for TMA. Every CTA loads a column's only scale. AsymGEMM keeps scales as
    long as their W tiles.
    """
    k_steps, sym = -(-gemm.k // config.tk), flow == "sym"
    rows, steps = 1, k_steps
    if gemm.groups > 1:
        own = config.tk // piece_size(config, gemm)
        rows = math.lcm(config.cluster, own) if sym else own
        steps = rows * gemm.group_size // config.tk
    if gemm.groups == 1 or sym:
        # loading W never waits for one of them
        shortest = k_steps % steps or steps
        scales = 1 + max(1, -(-(config.w_ahead if sym else 0) // shortest))
    else:
        scales = max(1, config.ring // steps)
    sum_rows = rows * gemm.group_size // sum_size(config, gemm)
    return Rings(
        x=config.x_stages if sym else config.asym_stages,
        w=config.w_stages if sym else config.ring,
        scale_rows=rows,
        scale_steps=steps,
        scales=scales,
        sum_rows=sum_rows,
        sums=_SUM_SLOTS,
        sum_slot_rows=round_up(sum_rows * config.tm, _ALIGNED_FLOATS) // config.tm,
    )


def ring_turns(config: Config, flow: Dataflow, ring: str) -> int:
    """Return the number of warpgroups that share a ring's tiles in turn; all read AsymGEMM's W."""
    return 1 if (flow, ring) == ("asym", "w") else config.turns


def pass_unit(config: Config, gemm: Gemm) -> int:
    """Return the unit of AsymGEMM's K passes in K steps: whole blocks of scales."""
    return 1 if gemm.groups == 1 else rings(config, gemm, "asym").scale_steps


def shared_bytes(config: Config, gemm: Gemm) -> int:
    """Return the bytes of shared memory of one CTA: the larger dataflow, output slots, barriers."""
    flows = dataflows(config)
    tiles = max(_tile_bytes(config, gemm, flow) for flow in flows)
    store = o_epilogue(config, gemm).nbytes(gemm.out_itemsize)
    barriers = _BARRIER * sum(_barriers(config, gemm, flow) for flow in flows)
    return tiles + config.warpgroups * store + max(BARRIER_BYTES, round_up(barriers, _ALIGNMENT))


def dataflows(config: Config) -> tuple[Dataflow, ...]:
    """Return the dataflows of a kernel with this configuration."""
    return ("sym", "asym") if config.kc else ("sym",)


def _barriers(config: Config, gemm: Gemm, flow: Dataflow) -> int:
    """Barriers of a dataflow: full and empty of each slot."""
    ring, full = rings(config, gemm, flow), _full(config, gemm, flow)
    return sum(full.values()) + sum(int(getattr(ring, name)) for name in full)


def _full(config: Config, gemm: Gemm, flow: Dataflow) -> dict[str, int]:
    """Barriers "full" of each ring that there is."""
    names = ["x", "w"]
    if gemm.quantised is not None:
        names += ["scales", "sums"] if gemm.quantised.offset_dtype else ["scales"]
    ring = rings(config, gemm, flow)
    turns = {name: ring_turns(config, flow, name) if name in "xw" else 1 for name in names}
    return {name: getattr(ring, name) * turns[name] for name in names}


def _tile_bytes(config: Config, gemm: Gemm, flow: Dataflow) -> int:
    ring = rings(config, gemm, flow)
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
      ValueError: tiles are no operands of wgmma, or a CTA lacks registers or shared memory.
    """
    if gemm.quantised is None:
        _check_plain(config)
    else:
        _check_quantised(config, gemm)
    for flow in dataflows(config):
        says = {"x": "asym_stages", "w": "kc / tk"} if flow == "asym" else {}
        for name, number in _full(config, gemm, flow).items():
            allowed = f"at most {MOST_BARRIERS} slots, of warpgroups in turn half of them"
            expect(number <= MOST_BARRIERS, says.get(name, f"{name}_stages"), number, allowed)
    check_shared_bytes(
        shared_bytes(config, gemm),
        f"x_stages={config.x_stages}, w_stages={config.w_stages}, kc={config.kc} or "
        f"asym_stages={config.asym_stages}",
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
    own = config.warpgroup_columns
    expect(
        config.tm * own <= _ONE_ACCUMULATOR,
        "tm",
        config.tm,
        f"at most {_ONE_ACCUMULATOR // own}: a warpgroup has registers for {_ONE_ACCUMULATOR} "
        f"float32 sums and has {own} columns",
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
    two = _TWO_ACCUMULATORS // own
    if config.tm > two and (why := _needs_two_accumulators(config, gemm)):
        raise ValueError(f"tm={config.tm}: expected at most {two} for {why}")
    if config.kc:
        expect(config.tm >= 64, "tm", config.tm, "at least 64 with AsymGEMM, kc above 0")
        unit = config.tk * pass_unit(config, gemm)
        expect(config.kc % unit == 0, "kc", config.kc, f"a multiple of {unit}: whole groups")


def most_rows(gemm: Gemm, tk: int) -> int:
    """Return the largest row tile for quantised weights, with 64 columns a warpgroup."""
    config = Config(tm=max(ROW_TILES), tk=tk, kc=0)
    return _TWO_ACCUMULATORS // WGMMA_ROWS if _needs_two_accumulators(config, gemm) else config.tm


def _needs_two_accumulators(config: Config, gemm: Gemm) -> str:
    """Return the reason why weights cannot be scaled before the product; empty if they can."""
    if scales_pieces(config, gemm):
        return f"group={gemm.group_size}, no multiple of tk={config.tk}"
    if gemm.quantised is not None and gemm.quantised.offset_dtype:
        return "weights with offsets"
    if gemm.groups > 1 and gemm.dtype == "float16":
        return "groups and dtype='float16', whose range is too small for scaled weights"
    return ""
