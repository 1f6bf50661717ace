"""Compile every configuration in use for GPUs that are not here, and check the machine code.

    python -m pallas_kernels.ahead_of_time [--target h200] [--op gemm] [--part 0/2] [--json]

Exits with 3 if a program is not as it should be, with 2 if the compiler is not installed.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from pallas_kernels.ahead_of_time.compiler import Compiler, missing, prepare
from pallas_kernels.ahead_of_time.report import problems
from pallas_kernels.ahead_of_time.targets import TARGETS
from pallas_kernels.ops import OPS, programs

FAULTS = 3  # exit status; 1 is Python's own


def _part(text: str) -> tuple[int, int]:
    index, _, of = text.partition("/")
    if not (index.isdecimal() and of.isdecimal() and int(index) < int(of)):
        raise argparse.ArgumentTypeError(f"{text!r}: expected i/n with i from 0 to n - 1")
    return int(index), int(of)


def main(arguments: Sequence[str] | None = None) -> int:
    """Compile, print a line for each program, and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m pallas_kernels.ahead_of_time")
    parser.add_argument("--target", action="append", choices=sorted(TARGETS), help="default: all")
    parser.add_argument("--op", action="append", choices=OPS, help="default: all")
    parser.add_argument(
        "--part", type=_part, default=(0, 1), help="of each op every n-th program, from i"
    )
    parser.add_argument("--json", action="store_true", help="a JSON object a line")
    options = parser.parse_args(arguments)
    if lack := missing():
        print(f"no CUDA compiler for jax here: {lack}", file=sys.stderr)
        return 2
    index, of = options.part
    failed = 0
    with tempfile.TemporaryDirectory(prefix="ahead_of_time") as folder:
        prepare(Path(folder))
        for name in options.target or TARGETS:
            compiler = Compiler(TARGETS[name], Path(folder))
            for op in options.op or OPS:
                for program in programs(op, TARGETS[name].sm_count)[index::of]:
                    start = time.perf_counter()
                    try:
                        _, report = compiler.compile(program)
                        wrong = problems(program, report)
                    except Exception as error:  # noqa: BLE001 - one refusal must not hide the rest
                        report, wrong = None, (f"{type(error).__name__}: {error}"[:2000],)
                    failed += bool(wrong)
                    seconds = time.perf_counter() - start
                    if options.json:
                        line = {
                            "target": name,
                            "op": op,
                            "name": program.name,
                            "problems": wrong,
                            "report": report and dataclasses.asdict(report),
                        }
                        print(json.dumps(line), flush=True)
                    else:
                        state = "; ".join(wrong) or "ok"
                        print(f"{name} {op}: {program.name}: {state} ({seconds:.1f} s)", flush=True)
    return FAULTS if failed else 0


if __name__ == "__main__":
    sys.exit(main())
