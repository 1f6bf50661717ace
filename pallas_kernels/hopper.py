"""Rules of sm_90 for every kernel's configuration."""

from __future__ import annotations

from dataclasses import dataclass

HOPPER_SMS = 132
"""SMs of a whole GPU; what a backend without SMs checks SM arguments against."""

INPUT_DTYPES = ("bfloat16", "float16")
"""Types of activations, and of weights that are not quantised."""

SHARED_BYTES_LIMIT = 232_448
"""Dynamic shared memory one CTA may ask for, in bytes."""

BARRIER_BYTES = 1024
"""All barriers of a CTA with room to spare; they stand beside the tiles in shared memory."""

MOST_BARRIERS = 32
"""Barriers of one ring, as many as jax keeps phases of in a word; it refuses more when lowering."""

SWIZZLE_BYTES = 128
"""The widest swizzled row of shared memory."""

TMA_BOX = 256
"""The largest side of a TMA box, in elements."""

WGMMA_ROWS = 64
"""Rows of one wgmma; a warpgroup's rows are a multiple."""

CLUSTERS = (1, 2, 4, 8)
"""Portable cluster sizes."""

LAUNCH_REGISTERS = {1: 240, 2: 168, 3: 128, 4: 96}
"""Registers a thread gets at launch, by the number of compute warpgroups (one more loads)."""


def expect(holds: bool, name: str, value: object, allowed: str) -> None:
    """Raise `ValueError` with argument, value and allowed ones, unless it `holds`."""
    if not holds:
        raise ValueError(f"{name}={value!r}: expected {allowed}")


# A configuration that breaks a rule aborts the process, hangs the GPU or spills registers.
def check_registers(warpgroups: int, compute_registers: int, load_registers: int) -> None:
    """Check a CTA's registers for `setmaxnreg`, whose excess hangs the kernel."""
    expect(warpgroups in LAUNCH_REGISTERS, "warpgroups", warpgroups, "1, 2, 3 or 4")
    for name, value in (
        ("compute_registers", compute_registers),
        ("load_registers", load_registers),
    ):
        expect(value % 8 == 0 and 24 <= value <= 240, name, value, "a multiple of 8, 24 to 240")
    registers = warpgroups * compute_registers + load_registers
    budget = (warpgroups + 1) * LAUNCH_REGISTERS[warpgroups]
    expect(
        registers <= budget,
        "compute_registers",
        compute_registers,
        f"warpgroups * compute_registers + load_registers = {registers} to be at most {budget}",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Part of a warpgroup's tile in one store, from `row` and `column` on."""

    row: int
    column: int
    rows: int
    columns: int
    slot: int


@dataclass(frozen=True, slots=True)
class Epilogue:
    """Pieces of a warpgroup's store: `rows` x `columns` each, through `slots`."""

    rows: int
    columns: int
    slots: int
    pieces: int

    def walk(self, tn: int) -> tuple[Piece, ...]:
        """Return the pieces of a tile of `tn` columns, in the order of stores."""
        across = tn // self.columns
        return tuple(
            Piece(
                row=number // across * self.rows,
                column=number % across * self.columns,
                rows=self.rows,
                columns=self.columns,
                slot=number % self.slots,
            )
            for number in range(self.pieces)
        )

    def nbytes(self, itemsize: int) -> int:
        """Bytes of a warpgroup's slots at `itemsize` bytes."""
        return self.slots * self.rows * self.columns * itemsize


def epilogue(warpgroup_rows: int, tn: int, itemsize: int) -> Epilogue:
    """Return the epilogue of a warpgroup's tile; pieces fill slots equally often."""
    columns = SWIZZLE_BYTES // itemsize
    pieces = (warpgroup_rows // WGMMA_ROWS) * (tn // columns)
    return Epilogue(WGMMA_ROWS, columns, 2 if pieces % 2 == 0 else 1, pieces)


def check_shared_bytes(need: int, lower: str) -> None:
    """Check that a CTA can have `need` bytes of shared memory."""
    if need > SHARED_BYTES_LIMIT:
        raise ValueError(
            f"config: needs {need} bytes of shared memory, expected at most {SHARED_BYTES_LIMIT}. "
            f"Lower {lower}."
        )
