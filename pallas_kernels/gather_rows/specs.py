"""Sizes of a gather, its pieces and grid."""

from __future__ import annotations

from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np

from pallas_kernels.hopper import BARRIER_BYTES, HOPPER_SMS, expect
from pallas_kernels.integer_math import ceil_div, round_up

DTYPES = (
    *("bfloat16", "float16", "float32", "float8_e4m3fn", "float8_e5m2"),
    *("int8", "uint8", "int32"),
)
"""Types of a table. Rows are moved as they are: the kernel computes nothing."""

ROW_BYTES = 16  # a bulk copy moves a multiple of this
_MAX_SIZE = 2**31 - 1  # the kernel counts in int32


@dataclass(frozen=True, slots=True, kw_only=True)
class GatherRows:
    """out[t] = table[ids[t]] as the kernel sees it; changing any of it recompiles.

    A row is fetched by bulk copies of at most `piece_bytes` into a ring of `stages`.
    """

    tokens: int
    rows: int
    columns: int
    dtype: str = "bfloat16"
    piece_bytes: int = 8192
    stages: int = 4
    sm_count: int = HOPPER_SMS

    def __post_init__(self) -> None:
        expect(self.dtype in DTYPES, "dtype", self.dtype, f"one of {', '.join(DTYPES)}")
        for name, unit in (("tokens", 1), ("rows", 1), ("columns", self.unit)):
            size = getattr(self, name)
            allowed = f"a multiple of {unit} above 0 and below 2**31"
            expect(0 < size <= _MAX_SIZE and size % unit == 0, name, size, allowed)

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return np.dtype(jnp.dtype(self.dtype)).itemsize

    @property
    def unit(self) -> int:
        """Number of elements of the shortest copy."""
        return ROW_BYTES // self.itemsize

    @property
    def pieces(self) -> int:
        """Number of equal pieces of a row."""
        return int(ceil_div(self.columns, self.piece_bytes // self.itemsize))

    @property
    def width(self) -> int:
        """Columns of a piece; the last one overlaps if they do not divide the row."""
        return round_up(int(ceil_div(self.columns, self.pieces)), self.unit)

    @property
    def ctas(self) -> int:
        """CTAs of the launch, at most the pieces."""
        return min(self.sm_count, self.tokens * self.pieces)

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a CTA: ring and barriers."""
        return self.stages * self.width * self.itemsize + BARRIER_BYTES
