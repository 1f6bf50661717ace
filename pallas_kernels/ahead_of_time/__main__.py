"""Compile every configuration in use for absent GPUs, and check the machine code.

    python -m pallas_kernels.ahead_of_time [--target h200] [--op gemm] [--part 0/2] [--json]
    python -m pallas_kernels.ahead_of_time --record

Exits with 3 if a program breaks a rule, with 2 if the compiler is not installed.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from pallas_kernels.ahead_of_time import record
from pallas_kernels.ahead_of_time.compiler import Compiler, missing, prepare
from pallas_kernels.ahead_of_time.report import CodeReport
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
    parser.add_argument(
        "--changed", action="store_true", help="skip recorded programs that lower the same"
    )
    parser.add_argument(
        "--record", action="store_true", help="like --changed, and record what passed (developers)"
    )
    options = parser.parse_args(arguments)
    if options.record and (options.target or options.part != (0, 1)):
        parser.error("--record: expected without --target and --part, which leave some out")
    if lack := missing():
        print(f"no CUDA compiler for jax here: {lack}", file=sys.stderr)
        return 2
    ops: tuple[str, ...] = tuple(options.op or OPS)
    targets = record.TARGETS if options.record else tuple(options.target or TARGETS)
    before = {op: record.fingerprint(op) for op in ops}
    known = record.read()
    failed = False
    with tempfile.TemporaryDirectory(prefix="ahead_of_time") as folder:
        prepare(Path(folder))
        for op in ops:
            old = known.get(op, record.Checked())
            right, wrong = set[str](), 0
            for name in targets:
                compiler = Compiler(TARGETS[name], Path(folder))
                skipped = old.programs if options.changed or options.record else None
                for one in _lines(compiler, op, options.part, skipped):
                    print(json.dumps(one.as_json()) if options.json else one.text(), flush=True)
                    wrong += bool(one.problems)
                    right |= set() if one.problems else {one.digest}
                if options.record:  # what an interrupted check has done need not be done again
                    record.write({op: replace(old, programs=old.programs | right)})
            failed |= bool(wrong)
            if options.record and not wrong:
                record.write({op: record.Checked(sources=before[op], programs=frozenset(right))})
    return FAULTS if failed else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Line:
    """Findings of a program."""

    target: str
    op: str
    name: str
    digest: str  # empty where the record was not asked for
    report: CodeReport | None  # None: not compiled
    problems: tuple[str, ...]
    seconds: float

    def text(self) -> str:
        """A line for people."""
        state = "; ".join(self.problems) or ("ok" if self.report else "as recorded")
        return f"{self.target} {self.op}: {self.name}: {state} ({self.seconds:.1f} s)"

    def as_json(self) -> dict[str, object]:
        """A line for programs."""
        return {
            "target": self.target,
            "op": self.op,
            "name": self.name,
            "problems": self.problems,
            "report": self.report and asdict(self.report),
        }


def _lines(
    compiler: Compiler, op: str, part: tuple[int, int], recorded: frozenset[str] | None
) -> Iterator[_Line]:
    """Compile the programs of an op for a target, except recorded ones."""
    index, of = part
    for program in programs(op, compiler.target.sm_count)[index::of]:
        start = time.perf_counter()
        report: CodeReport | None = None
        wrong: tuple[str, ...] = ()
        digest = ""
        try:
            if recorded is not None:
                with compiler.quiet():
                    digest = record.digest_of(program, compiler.target)
            if recorded is None or digest not in recorded:
                report, wrong = compiler.check(program)
        except Exception as error:  # noqa: BLE001 - one refusal must not hide the rest
            wrong = (f"{type(error).__name__}: {error}"[:2000],)
        yield _Line(
            target=compiler.target.name,
            op=op,
            name=program.name,
            digest=digest,
            report=report,
            problems=wrong,
            seconds=time.perf_counter() - start,
        )


if __name__ == "__main__":
    sys.exit(main())
