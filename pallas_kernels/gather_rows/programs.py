"""Programs of the configurations in use, for ahead-of-time compilation."""

from __future__ import annotations

import functools
from dataclasses import replace

from pallas_kernels.gather_rows.api import launch
from pallas_kernels.gather_rows.specs import DTYPES, Config, GatherRows
from pallas_kernels.program import Argument, Program

_OPCODES = frozenset({"UBLKCP"})  # contiguous bulk copies, both ways
_ABSENT = frozenset({"HGMMA", "UTMALDG", "UTMASTG", "UTMAREDG", "USETMAXREG"})


def programs(sm_count: int) -> tuple[Program, ...]:
    """Return the programs of decode and prefill for a GPU or slice of `sm_count` SMs."""
    found = [
        GatherRows(tokens=tokens, rows=128_256, row_columns=4096, columns=4096)
        for tokens in (1, 8, 32, 512, 2048)
    ]
    found += [
        GatherRows(tokens=64, rows=32_000, row_columns=4096, columns=4096, dtype=dtype)
        for dtype in DTYPES
    ]
    found += [
        GatherRows(tokens=16, rows=49_152, row_columns=640, columns=576),  # padded rows
        GatherRows(tokens=3, rows=151_936, row_columns=5120, columns=5120),  # overlapping pieces
        GatherRows(tokens=7, rows=49_152, row_columns=32, columns=20, dtype="float32"),  # scales
        GatherRows(tokens=40, rows=4096, row_columns=1024, columns=1024, dtype="int8", layers=3),
    ]
    config = Config(sm_count=sm_count)
    return tuple(program(replace(spec, config=config)) for spec in found)


def program(spec: GatherRows) -> Program:
    """Return the program of one gather from a table in host memory."""
    stack = "" if spec.layers is None else f"{spec.layers}x"
    shape = f"{stack}{spec.rows}x{spec.row_columns}"
    return Program(
        op="gather_rows",
        name=f"{spec.tokens} rows of {shape} {spec.dtype}, {spec.columns} columns",
        function=functools.partial(launch, spec=spec, columns=spec.columns, out_dtype=spec.dtype),
        arguments=(
            Argument(shape=spec.table_shape, dtype=spec.dtype, host=True),
            Argument(shape=(spec.tokens,), dtype="int32"),
            Argument(shape=(2,), dtype="int32"),
        ),
        shared_bytes=spec.shared_bytes,
        opcodes=_OPCODES,
        absent=_ABSENT,
        key=(
            ("tokens", str(spec.tokens)),
            ("table", shape),
            ("columns", str(spec.columns)),
            ("dtype", spec.dtype),
            ("sm_count", str(spec.config.sm_count)),
        ),
    )
