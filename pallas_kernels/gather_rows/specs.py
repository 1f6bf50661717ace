"""Static description of one launch of the gather."""

from __future__ import annotations

from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np

from pallas_kernels.hopper import expect

DTYPES = (
    *("bfloat16", "float16", "float32", "float8_e4m3fn", "float8_e5m2"),
    *("int8", "uint8", "int32"),
)
"""Types of a table. Rows are moved as they are: the kernel computes nothing."""

ROW_BYTES = 16
"""What a bulk copy moves: rows, and parts of rows, are multiples of so many bytes."""

_MAX_SIZE = 2**31 - 1  # the kernel counts in int32


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

    def __post_init__(self) -> None:
        expect(self.dtype in DTYPES, "dtype", self.dtype, f"one of {', '.join(DTYPES)}")
        for name in ("tokens", "rows", "row_columns", "columns"):
            size = getattr(self, name)
            expect(0 < size <= _MAX_SIZE, name, size, "a number above 0 and below 2**31")
        expect(self.columns <= self.row_columns, "columns", self.columns, f"{self.row_columns}")
        unit = self.unit
        for name in ("row_columns", "columns"):
            size = getattr(self, name)
            allowed = f"a multiple of {unit}: {ROW_BYTES} bytes of {self.dtype}"
            expect(size % unit == 0, name, size, allowed)
        if self.layers is not None:
            expect(self.layers >= 1, "layers", self.layers, "a number from 1 up")

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
    def link_bytes(self) -> int:
        """Bytes that cross the link: one row per token."""
        return self.tokens * self.columns * self.itemsize
