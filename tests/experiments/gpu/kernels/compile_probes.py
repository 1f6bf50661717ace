"""Compile the benchmark's own kernels for an H200 without one; prints what is wrong, as JSON.

In a process of its own: the compiler reads its settings from the environment, once.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import jax

from experiments.gpu.kernels import profiling
from experiments.gpu.kernels.adding import TILE, TILE_BYTES, adder
from experiments.gpu.kernels.facts import BOXES, FIG4
from experiments.gpu.kernels.probes import Streaming, launcher
from pallas_kernels.ahead_of_time import TARGETS, Compiler, prepare, problems
from pallas_kernels.gemm import Gemm, choose, machine_for, program, with_profile
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


def profiled() -> Iterator[Program]:
    """The launches of the section `profile`, with one layer."""
    from pallas_kernels.gemm import sm90

    for m in profiling.ROWS:
        gemm = Gemm(m=m, k=FIG4[0], n=FIG4[1])
        chosen = choose(gemm, machine_for(sm_count=132))
        config, profile = with_profile(chosen, gemm, "/no/trace")
        function: Any = sm90.build(gemm, config, profile=profile)
        yield replace(program(f"profile of {m} rows", gemm, config), function=function)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        prepare(Path(folder))
        compiler = Compiler(TARGETS["h200"], Path(folder))
        # the callback that writes a trace needs a GPU even to be lowered
        with mock.patch.object(jax.debug, "callback"):
            for one in (additions(), *probes(), *profiled()):
                _, report = compiler.compile(one)
                print(json.dumps({"name": one.name, "wrong": problems(one, report)}), flush=True)


if __name__ == "__main__":
    sys.exit(main())
