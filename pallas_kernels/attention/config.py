"""Compile-time configuration of the two kernels."""

from __future__ import annotations

from dataclasses import dataclass

from pallas_kernels.attention.specs import GROUP_ROWS, Decode, Prefill, itemsize
from pallas_kernels.hopper import (
    BARRIER_BYTES,
    MOST_BARRIERS,
    SWIZZLE_BYTES,
    TMA_BOX,
    WGMMA_ROWS,
    check_registers,
    check_shared_bytes,
    expect,
)
from pallas_kernels.integer_math import ceil_div

_PREFILL_WARPGROUPS = 2  # they take turns on the tensor cores

_BLOCKS_PER_SPLIT = 4  # a shorter share costs more to start and merge than it saves
_MOST_SPLITS = 64
_BUSY = 0.9  # share of SMs in use over all waves from which more splits bring little

REDUCTION_BYTES = 2048  # what Mosaic sets aside for maxima and sums over a row


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillConfig:
    """Tiles of the prefill kernel: two compute warpgroups of 64 queries, one that loads.

    Rings of K and V have `stages` tiles of `block_kv` keys.
    """

    block_kv: int = 128
    stages: int = 2
    compute_registers: int = 232
    load_registers: int = 40

    def __post_init__(self) -> None:
        _check_ring(self.block_kv, self.stages)
        check_registers(_PREFILL_WARPGROUPS, self.compute_registers, self.load_registers)

    @property
    def warpgroups(self) -> int:
        """Warpgroups that compute."""
        return _PREFILL_WARPGROUPS

    @property
    def tile(self) -> int:
        """Queries of one CTA."""
        return _PREFILL_WARPGROUPS * WGMMA_ROWS


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeConfig:
    """Tiles of the decode kernel: one compute warpgroup, one that loads.

    `splits` CTAs share the keys of one sequence and KV head; their results are merged.
    """

    block_kv: int = 64
    stages: int = 4
    splits: int = 1
    compute_registers: int = 232
    load_registers: int = 40

    def __post_init__(self) -> None:
        _check_ring(self.block_kv, self.stages)
        check_registers(self.warpgroups, self.compute_registers, self.load_registers)
        expect(self.splits >= 1, "splits", self.splits, "a number above 0")

    @property
    def warpgroups(self) -> int:
        """Warpgroups that compute."""
        return 1

    def pieces(self, page: int) -> int:
        """TMA copies of a block of keys: one per page."""
        return max(1, self.block_kv // page)


def _check_ring(block_kv: int, stages: int) -> None:
    expect(
        block_kv % 64 == 0 and block_kv <= TMA_BOX, "block_kv", block_kv, "a multiple of 64 to 256"
    )
    expect(2 <= stages <= MOST_BARRIERS, "stages", stages, f"a number from 2 to {MOST_BARRIERS}")


@dataclass(frozen=True, slots=True)
class Store:
    """A warpgroup's store of 64 rows: `pieces` of `columns`, through `slots`."""

    columns: int
    pieces: int
    slots: int

    def nbytes(self, dtype: str) -> int:
        """Shared memory of one warpgroup."""
        return self.slots * WGMMA_ROWS * self.columns * itemsize(dtype)


def store(dim: int, out_dtype: str) -> Store:
    """Return the result's store: swizzled rows, through up to two slots."""
    columns = SWIZZLE_BYTES // itemsize(out_dtype)
    pieces = dim // columns
    return Store(columns, pieces, 2 if pieces % 2 == 0 else 1)


def prefill_shared_bytes(spec: Prefill, config: PrefillConfig) -> int:
    """Return the shared memory of one CTA in bytes."""
    ring = 2 * config.stages * config.block_kv
    tiles = (config.tile + ring) * spec.dim * itemsize(spec.dtype)
    out = config.warpgroups * store(spec.dim, spec.dtype).nbytes(spec.dtype)
    return tiles + out + REDUCTION_BYTES + BARRIER_BYTES


def decode_shared_bytes(spec: Decode, config: DecodeConfig) -> int:
    """Return the shared memory of one CTA in bytes."""
    ring = 2 * config.stages * config.block_kv
    tiles = (GROUP_ROWS + ring) * spec.dim * itemsize(spec.dtype)
    out = store(spec.dim, spec.out_dtype).nbytes(spec.out_dtype)
    lse = GROUP_ROWS * itemsize("float32")
    return tiles + out + lse + REDUCTION_BYTES + BARRIER_BYTES


def check_prefill(spec: Prefill, config: PrefillConfig) -> None:
    """Check one CTA's shared memory."""
    check_shared_bytes(
        prefill_shared_bytes(spec, config), f"stages={config.stages} or block_kv={config.block_kv}"
    )


def check_decode(spec: Decode, config: DecodeConfig) -> None:
    """Check a CTA's shared memory, and page against block."""
    fits = config.block_kv % spec.page == 0 or spec.page % config.block_kv == 0
    expect(fits, "block_kv", config.block_kv, f"a multiple or a divisor of page={spec.page}")
    check_shared_bytes(
        decode_shared_bytes(spec, config), f"stages={config.stages} or block_kv={config.block_kv}"
    )


def choose_prefill(spec: Prefill) -> PrefillConfig:
    """Return tiles that fit."""
    return PrefillConfig(stages=2 if spec.dim == 128 else 4)


def choose_decode(spec: Decode, *, sm_count: int) -> DecodeConfig:
    """Return tiles, and the fewest splits for busy SMs."""
    config = DecodeConfig(stages=4 if spec.dim == 128 else 6)
    blocks = ceil_div(spec.table * spec.page, config.block_kv)
    splits = choose_splits(spec.batch * spec.kv_heads, blocks, sm_count)
    return DecodeConfig(stages=config.stages, splits=splits)


def choose_splits(work: int, blocks: int, sm_count: int) -> int:
    """Return the number of splits of the keys of each of `work` items.

    >>> choose_splits(8, 512, 132), choose_splits(512, 512, 132), choose_splits(8, 4, 132)
    (15, 1, 1)
    """
    most = max(1, min(blocks // _BLOCKS_PER_SPLIT, _MOST_SPLITS))

    def busy(splits: int) -> float:
        ctas = work * splits
        waves = -(-ctas // sm_count)
        return ctas / (waves * sm_count)

    return max(range(1, most + 1), key=lambda splits: (min(busy(splits), _BUSY), -splits))
