"""Sizes of a gather, its pieces and grid, and the limits that they must keep."""

from __future__ import annotations

from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np

from pallas_kernels.counting import ceil_div, round_up
from pallas_kernels.hopper import BARRIER_BYTES, MOST_BARRIERS, check_shared_bytes, expect

DTYPES = (
    *("bfloat16", "float16", "float32", "float8_e4m3fn", "float8_e5m2"),
    *("int8", "uint8", "int32"),
)
"""Types of a table. Rows are moved as they are: the kernel computes nothing."""

ROW_BYTES = 16
"""What a bulk copy moves: rows, and parts of rows, are multiples of so many bytes."""

_MAX_SIZE = 2**31 - 1  # the kernel counts in int32
_MAX_PIECE_BYTES = 65_536  # far below what a barrier counts: 2**20 - 1 bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """Size of pieces and number of copies in flight. Changing any of them recompiles.

    A row is fetched in pieces of at most `piece_bytes`, each by one bulk copy into a ring of
    `stages`, and stored by another. A CTA has `stages - 1` loads in flight, so that the latency of
    the link is paid once: 132 SMs have 3 MB in flight with the defaults; 400 GB/s for 2 us need
    0.8 MB.
    """

    piece_bytes: int = 8192
    stages: int = 4
    sm_count: int = 132

    def __post_init__(self) -> None:
        pieces, stages = range(ROW_BYTES, _MAX_PIECE_BYTES + 1, ROW_BYTES), self.stages
        allowed = f"a multiple of {ROW_BYTES} up to {_MAX_PIECE_BYTES}"
        expect(self.piece_bytes in pieces, "piece_bytes", self.piece_bytes, allowed)
        allowed = f"a number from 2 to {MOST_BARRIERS}"
        expect(2 <= stages <= MOST_BARRIERS, "stages", stages, allowed)
        expect(self.sm_count >= 1, "sm_count", self.sm_count, "a number above 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class GatherRows:
    """out[t, :columns] = table[ids[t], :columns] as the kernel sees it.

    `row_columns` is the length of a stored row, `columns` the fetched part of it. `layers` is
    the leading size of a stack of tables, or None for one table.
    """

    tokens: int
    rows: int
    row_columns: int
    columns: int
    dtype: str = "bfloat16"
    layers: int | None = None
    config: Config = Config()

    def __post_init__(self) -> None:
        expect(self.dtype in DTYPES, "dtype", self.dtype, f"one of {', '.join(DTYPES)}")
        for name in ("tokens", "rows", "row_columns", "columns"):
            size, unit = getattr(self, name), self.unit if "columns" in name else 1
            allowed = f"a multiple of {unit} above 0 and below 2**31"
            expect(0 < size <= _MAX_SIZE and size % unit == 0, name, size, allowed)
        expect(self.columns <= self.row_columns, "columns", self.columns, f"{self.row_columns}")
        if self.layers is not None:
            expect(self.layers >= 1, "layers", self.layers, "a number from 1 up")
        setting = f"piece_bytes={self.config.piece_bytes} or stages={self.config.stages}"
        check_shared_bytes(self.shared_bytes, setting)

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return np.dtype(jnp.dtype(self.dtype)).itemsize

    @property
    def unit(self) -> int:
        """Number of elements of the shortest copy."""
        return ROW_BYTES // self.itemsize

    @property
    def table_shape(self) -> tuple[int, ...]:
        """Shape of the table, with the layers if it is a stack."""
        table = (self.rows, self.row_columns)
        return table if self.layers is None else (self.layers, *table)

    @property
    def pieces(self) -> int:
        """Number of equal pieces of a row."""
        return int(ceil_div(self.columns, self.config.piece_bytes // self.itemsize))

    @property
    def width(self) -> int:
        """Columns of a piece; the last one overlaps if they do not divide the row."""
        return round_up(int(ceil_div(self.columns, self.pieces)), self.unit)

    @property
    def ctas(self) -> int:
        """CTAs of the launch, at most the number of pieces."""
        return min(self.config.sm_count, self.tokens * self.pieces)

    @property
    def shared_bytes(self) -> int:
        """Shared memory of one CTA: the ring and its barriers."""
        return self.config.stages * self.width * self.itemsize + BARRIER_BYTES
