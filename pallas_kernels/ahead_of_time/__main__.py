"""Compilation and checks of configurations in use for absent GPUs.

python -m pallas_kernels.ahead_of_time [--target h200] [--op gemm] [--part 0/2] [--json]
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from pallas_kernels.ahead_of_time.compiler import Compiler, missing, prepare
from pallas_kernels.ahead_of_time.report import CodeReport
from pallas_kernels.ahead_of_time.targets import TARGETS
from pallas_kernels.ops import OPS, programs

FAULTS = 3  # exit status; 1 is Python's own


def _part(text: str) -> tuple[int, int]:
    index, _, parts = text.partition("/")
    if not (index.isdecimal() and parts.isdecimal() and int(index) < int(parts)):
        raise argparse.ArgumentTypeError(f"{text!r}: expected i/n with i from 0 to n - 1")
    return int(index), int(parts)


def main(arguments: Sequence[str] | None = None) -> int:
    """Compile, print a line a program; return 3 for a broken rule, 2 without compiler."""
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
    ops: tuple[str, ...] = tuple(options.op or OPS)
    failed = False
    with tempfile.TemporaryDirectory(prefix="ahead_of_time") as folder:
        prepare(Path(folder))
        for op in ops:
            for name in options.target or TARGETS:
                compiler = Compiler(TARGETS[name], Path(folder))
                for one in _lines(compiler, op, options.part):
                    print(json.dumps(one.as_json()) if options.json else one.text(), flush=True)
                    failed |= bool(one.problems)
    return FAULTS if failed else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Line:
    target: str
    op: str
    name: str
    report: CodeReport | None  # None: not compiled
    problems: tuple[str, ...]
    seconds: float

    def text(self) -> str:
        state = "; ".join(self.problems) or "ok"
        return f"{self.target} {self.op}: {self.name}: {state} ({self.seconds:.1f} s)"

    def as_json(self) -> dict[str, object]:
        return {
            "target": self.target,
            "op": self.op,
            "name": self.name,
            "problems": self.problems,
            "report": self.report and asdict(self.report),
        }


def _lines(compiler: Compiler, op: str, part: tuple[int, int]) -> Iterator[_Line]:
    index, parts = part
    for program in programs(op, compiler.target.sm_count)[index::parts]:
        start = time.perf_counter()
        report: CodeReport | None = None
        try:
            report, wrong = compiler.check(program)
        except Exception as error:  # noqa: BLE001 - one refusal must not hide the rest
            wrong = (f"{type(error).__name__}: {error}"[:2000],)
        yield _Line(
            target=compiler.target.name,
            op=op,
            name=program.name,
            report=report,
            problems=wrong,
            seconds=time.perf_counter() - start,
        )


if __name__ == "__main__":
    sys.exit(main())
