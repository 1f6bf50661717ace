"""Programs of the configurations in use, for ahead-of-time compilation."""

from __future__ import annotations

import functools

from pallas_kernels.gather_rows.api import launch
from pallas_kernels.gather_rows.specs import DTYPES, GatherRows
from pallas_kernels.program import Argument, Program

_OPCODES = frozenset({"UBLKCP"})  # contiguous bulk copies, both ways
_ABSENT = frozenset({"HGMMA", "UTMALDG", "UTMASTG", "UTMAREDG", "USETMAXREG"})


def programs(sm_count: int) -> tuple[Program, ...]:
    """Return decode and prefill programs for `sm_count` SMs."""
    gathers = [(tokens, 128_256, 4096, "bfloat16") for tokens in (1, 8, 32, 512, 2048)]
    gathers += [(64, 32_000, 4096, dtype) for dtype in DTYPES]
    gathers += [
        (3, 151_936, 5120, "bfloat16"),  # overlapping pieces
        (7, 49_152, 20, "float32"),  # scales: rows shorter than a piece
    ]
    specs = [
        GatherRows(tokens=tokens, rows=rows, columns=columns, dtype=dtype, sm_count=sm_count)
        for tokens, rows, columns, dtype in gathers
    ]
    return tuple(_program(spec) for spec in specs)


def _program(spec: GatherRows) -> Program:
    name = f"{spec.tokens} rows of {spec.rows}x{spec.columns} {spec.dtype}"
    return Program(
        op="gather_rows",
        name=name,
        function=functools.partial(launch, spec=spec),
        arguments=(
            Argument(shape=(spec.rows, spec.columns), dtype=spec.dtype, host=True),
            Argument(shape=(spec.tokens,), dtype="int32"),
            Argument(shape=(1,), dtype="int32"),
        ),
        shared_bytes=spec.shared_bytes,
        opcodes=_OPCODES,
        absent=_ABSENT,
    )
