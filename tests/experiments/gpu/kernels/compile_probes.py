"""Compile the benchmark's own kernels for an H200 without one; prints what is wrong, as JSON.

In a process of its own: the compiler reads its settings from the environment, once.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from experiments.gpu.kernels.adding import TILE, TILE_BYTES, adder
from experiments.gpu.kernels.facts import BOXES
from experiments.gpu.kernels.probes import Streaming, launcher
from pallas_kernels.ahead_of_time import TARGETS, Compiler, prepare, problems
from pallas_kernels.hopper import BARRIER_BYTES
from pallas_kernels.program import Argument, Program


def probes() -> Iterator[Program]:
    choices = [{"rows": r, "columns": c, "stages": 65536 // (r * c)} for r, c in BOXES]
    choices += [{"cluster": c} for c in (2, 4, 8)]
    for choice in choices:
        reading = Streaming(k=8192, n=16384, **choice)
        yield Program(
            op="probe",
            name=str(choice),
            function=launcher(reading),
            arguments=(
                Argument(shape=(reading.k, reading.n), dtype=reading.dtype, host=True),
                Argument(shape=(4,), dtype="int32"),
            ),
            shared_bytes=reading.stages * reading.box_bytes + BARRIER_BYTES,
            opcodes=frozenset({"UTMALDG", "UTMASTG"}),
            absent=frozenset({"HGMMA"}),
            multicast=reading.cluster > 1,
        )


def additions() -> Program:
    return Program(
        op="probe",
        name="additions",
        function=adder(1024, 132, by_adding=True),
        arguments=(
            Argument(shape=TILE, dtype="float32"),
            Argument(shape=(1,), dtype="int32"),
        ),
        shared_bytes=TILE_BYTES + BARRIER_BYTES,
        opcodes=frozenset({"UTMALDG", "UTMASTG", "UTMAREDG"}),
        absent=frozenset({"HGMMA"}),
    )


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        prepare(Path(folder))
        compiler = Compiler(TARGETS["h200"], Path(folder))
        for program in (additions(), *probes()):
            _, report = compiler.compile(program)
            print(
                json.dumps({"name": program.name, "wrong": problems(program, report)}), flush=True
            )


if __name__ == "__main__":
    sys.exit(main())
