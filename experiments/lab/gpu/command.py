"""Command line of `make gpu`: one call, nine minutes, three verdicts.

    make gpu                                          # everything in order, nine minutes
    make gpu ARGS="--rows back/rows.jsonl"            # rows elsewhere; the same call resumes them
    make gpu ARGS="--stages probe,decode --minutes 4"
    make gpu ARGS=--dry-run                           # without a GPU: tiny sizes on a CPU
    make gpu ARGS="--judge back/rows.jsonl"           # verdicts on rows, nothing is run

Exit status: 0 all well, 1 a failed case or dead device, 2 no GPU or a wrong argument, 130 a signal.
Verdicts are in `rows.md` beside the rows.
"""

from __future__ import annotations

import argparse
import datetime as dt
import os
import platform
import re
import subprocess
import sys
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from c2c.atomic import write_text
from c2c.errors import SettingError
from experiments.children import run
from experiments.command import BAD_SETTINGS, command
from experiments.lab.gpu import verdicts
from experiments.lab.gpu.cases import Case, plan
from experiments.lab.gpu.rows import Rows
from experiments.lab.gpu.runner import LOOK_S, START_S, look, run_cases
from experiments.lab.gpu.worker import Settings

RESULTS: Final = Path(__file__).parents[2] / "results"
_MINUTES: Final = (0.1, 600.0)
_SMI: Final = "driver_version,pcie.link.gen.max,pcie.link.width.max,clocks.max.sm,power.limit"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit status."""
    argv = sys.argv[1:] if arguments is None else list(arguments)
    return command(lambda: _main(argv), argv, once=True)


def _main(arguments: Sequence[str]) -> int:
    options = _parser().parse_args(arguments)
    begun = time.monotonic() - max(
        0.0, time.time() - float(os.environ.get("C2C_GPU_BEGUN", time.time()))
    )
    low, high = _MINUTES
    if not low <= options.minutes <= high:
        raise SettingError("--minutes", options.minutes, f"a number from {low} to {high:.0f}")
    if options.judge is not None:
        if not options.judge.is_file():
            raise SettingError("--judge", str(options.judge), "a file of rows of make gpu")
        rows = Rows(options.judge)
        print(verdicts.summary(rows.all, rows.runs))
        return 0
    stages = options.stages.split(",") if options.stages else list(verdicts.STEPS)
    for stage in stages:
        if stage not in verdicts.STEPS:
            raise SettingError("--stages", stage, f"some of {', '.join(verdicts.STEPS)}")
    if options.list:
        for case in _cases(stages, tiny=False):
            print(case.key)
        return 0
    where = "cpu" if options.dry_run else "gpu"
    facts = look(where, START_S)
    if isinstance(facts, str):
        print(f"No GPU: jax says: {facts}. nvidia-smi says: {_smi() or 'nothing'}", file=sys.stderr)
        if options.dry_run or not (named := _smi().partition(",")[0]):
            return BAD_SETTINGS
        stages, facts = ["probe"], {"device": named, "jax": facts}  # the probe needs no jax
    rows = Rows(options.rows or RESULTS / _folder(facts, options.dry_run) / verdicts.NAME)
    settings = Settings(
        backend="reference" if options.dry_run else "sm90", tiny=options.dry_run,
        folder=str((rows.path.parent / "build").resolve()),
    )  # fmt: skip
    return _run(options, stages, rows, settings, facts, where, begun + 60 * options.minutes)


def _run(
    options: argparse.Namespace, stages: Sequence[str], rows: Rows, settings: Settings,
    facts: Mapping[str, Any], where: str, until: float,
) -> int:  # fmt: skip
    number = uuid.uuid4().hex[:8]
    rows.add_run(_provenance(facts) | {"run": number})
    labels = {"run": number} | ({"dry_run": True} if options.dry_run else {})

    def alive() -> str:
        state = look(where, LOOK_S)
        return state if isinstance(state, str) else ""

    def page(dead: str = "") -> None:
        write_text(rows.path.with_suffix(".md"), verdicts.summary(rows.all, rows.runs, dead))

    try:
        outcome = run_cases(
            _cases(stages, tiny=options.dry_run), rows, settings, until=until, labels=labels,
            retry_failed=options.retry_failed, alive=alive, after=page,
        )  # fmt: skip
    finally:
        page()
    page(outcome.dead)
    counts = ", ".join(f"{count} {name}" for name, count in sorted(outcome.counts.items()))
    print(f"{counts or 'nothing to do'}; {outcome.left} left. Rows: {rows.path}")
    print(f"Ended early: {outcome.dead}" if outcome.dead else verdicts.verdict(rows.all))
    bad = outcome.dead or any(outcome.counts[name] for name in ("failed", "hung", "crashed"))
    return 1 if bad else 0


def _cases(stages: Sequence[str], *, tiny: bool) -> list[Case]:
    tests: list[str] = []
    if "correctness" in stages and not tiny:
        from experiments.lab.gpu.suite import collected  # needs pytest

        tests = collected()
    return [case for case in plan(tiny=tiny, tests=tests) if case.stage in stages]


def _provenance(facts: Mapping[str, Any]) -> dict[str, Any]:
    return {
        **facts,
        "date": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        "driver": _smi(),
        "python": platform.python_version(),
        "commit": _output(["git", "rev-parse", "HEAD"]) or os.environ.get("C2C_COMMIT"),
        "cpus": os.cpu_count(),
    }


def _smi() -> str:
    return _output(["nvidia-smi", "-i", "0", f"--query-gpu=name,{_SMI}", "--format=csv,noheader"])


def _output(words: Sequence[str]) -> str:
    try:
        done = run(words, limit_s=10.0)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.out.strip() if done.code == 0 else ""


def _folder(facts: Mapping[str, Any], dry_run: bool) -> str:
    kind = "dry run" if dry_run else str(facts["device"])
    return re.sub(r"[^a-z0-9]+", "-", kind.lower()).strip("-")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="make gpu ARGS=", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=9.0, help="when to stop, in all (9)")
    parser.add_argument("--rows", type=Path, help="file of rows, resumed if it exists")
    parser.add_argument("--stages", default="", help=f"some of {','.join(verdicts.STEPS)}")
    parser.add_argument("--retry-failed", action="store_true", help="run failed cases again")
    parser.add_argument("--dry-run", action="store_true", help="tiny sizes on a CPU; no results")
    parser.add_argument("--list", action="store_true", help="print the cases and stop")
    parser.add_argument(
        "--judge", type=Path, metavar="ROWS", help="print verdicts on rows and stop"
    )
    return parser
