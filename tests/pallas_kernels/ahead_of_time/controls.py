"""Programs with known faults, compiled like the real ones. Prints what is found as JSON lines.

python -m tests.pallas_kernels.ahead_of_time.controls [number of a compiled program]
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import jax

from pallas_kernels.ahead_of_time import TARGETS, Compiler, prepare, problems
from pallas_kernels.gemm import Config, Gemm
from pallas_kernels.gemm.programs import program
from pallas_kernels.program import Argument, Program


def controls() -> Iterator[tuple[Program, dict[str, Program]]]:
    """Yield what is compiled, and by name as what it is judged."""
    gemm = Gemm(m=512, k=1024, n=2048)
    # an accumulator of 256 float32 registers a thread, of which there are 232
    wide = Config(tn=256, x_stages=2, w_stages=2, kc=128, sm_count=132)
    spills = program("spills", gemm, wide)
    yield spills, {"spills": spills}
    # one that Config refuses, since on a GPU it would hang; the compiler says nothing
    overrun = Config(sm_count=132)
    object.__setattr__(overrun, "compute_registers", 248)
    object.__setattr__(overrun, "load_registers", 56)
    registers = program("registers", gemm, overrun)
    yield registers, {"registers": registers}
    good = program("good", gemm, Config(sm_count=132))
    yield (
        good,
        {
            "good": good,
            "multicast": dataclasses.replace(good, multicast=True),
            "opcodes": dataclasses.replace(good, absent=frozenset({"UTMAREDG"})),
            "shared": dataclasses.replace(good, shared_bytes=good.shared_bytes // 2),
        },
    )
    x, w, scalars = good.arguments
    stack = Argument(shape=(3, *w.shape), dtype=w.dtype, host=True)
    sliced = dataclasses.replace(
        good, function=lambda x, w, s: good.function(x, w[1], s), arguments=(x, stack, scalars)
    )
    yield sliced, {"sliced": sliced}
    square = program("square", Gemm(m=512, k=1024, n=1024), Config(sm_count=132))

    def scan(x: jax.Array, stack: jax.Array, scalars: jax.Array) -> jax.Array:
        return jax.lax.scan(lambda x, w: (square.function(x, w, scalars), None), x, stack)[0]

    x, w, scalars = square.arguments
    stack = Argument(shape=(3, *w.shape), dtype=w.dtype, host=True)
    scanned = dataclasses.replace(square, function=scan, arguments=(x, stack, scalars))
    yield scanned, {"scanned": scanned}


def main(arguments: list[str]) -> None:
    begin, end = (int(arguments[0]), int(arguments[0]) + 1) if arguments else (0, None)
    with tempfile.TemporaryDirectory() as folder:
        prepare(Path(folder))
        compiler = Compiler(TARGETS["h200"], Path(folder))
        for compiled, judged in itertools.islice(controls(), begin, end):
            _, report = compiler.compile(compiled)
            for name, faulty in judged.items():
                print(json.dumps([name, problems(faulty, report)]), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
