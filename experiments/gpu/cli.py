"""Measures this machine's GPU, its link to host memory and the kernels on them.

    python -m experiments.gpu [section ...] [--minutes 9]

Without sections all are run, in order. What was measured before is kept: the same command goes on
where the last one stopped. Results: <out>/<device>/<section>/<section>.parquet, and a summary and
figures beside them. `docs/gpu.md` explains sections and columns. Exits with 2 where there is no
GPU, with 1 if a case failed.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from experiments.gpu import report
from experiments.gpu.cases import Context
from experiments.gpu.describe import ask
from experiments.gpu.device import folder_name
from experiments.gpu.files import pack
from experiments.gpu.guard import why_not
from experiments.gpu.runner import Ran, run_section
from experiments.gpu.sections import SECTIONS
from experiments.gpu.store import Store

RESULTS = Path(__file__).parents[1] / "results"
DRY_RUN_MINUTES = 60.0


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Return the options."""
    parser = argparse.ArgumentParser(
        prog="python -m experiments.gpu",
        description=__doc__,
        formatter_class=argparse.RawTextHelpFormatter,
    )
    parser.add_argument("sections", nargs="*", metavar="section", help=", ".join(SECTIONS))
    parser.add_argument("--list", action="store_true", help="list the sections and what they hold")
    parser.add_argument("--minutes", type=float, default=9.0, help="stop after this time (9)")
    parser.add_argument("--quick", action="store_true", help="few cases, few repetitions")
    parser.add_argument("--dry-run", action="store_true", help="tiny sizes on a CPU; no results")
    parser.add_argument("--fresh", action="store_true", help="measure everything again")
    parser.add_argument("--retry-failed", action="store_true", help="run failed cases again")
    parser.add_argument("--out", type=Path, help=f"where results go ({RESULTS.name}/)")
    parser.add_argument("--archive", type=Path, help="also pack all results into this .tar.gz")
    parser.add_argument("--seed", type=int, default=0, help="of the random inputs (0)")
    options = parser.parse_args(arguments)
    for name in options.sections:
        if name not in SECTIONS:
            parser.error(f"section {name!r}: expected one of {', '.join(SECTIONS)}")
    if options.minutes <= 0:
        parser.error(f"--minutes={options.minutes}: expected a number above 0")
    if options.dry_run:
        if options.out is not None and options.out.resolve().is_relative_to(RESULTS.resolve()):
            parser.error(f"--out={options.out}: expected another folder, a dry run has no results")
        if options.out is None:
            options.out = Path(tempfile.mkdtemp(prefix="c2c-gpu-dry-run-"))
        options.minutes = max(options.minutes, DRY_RUN_MINUTES)
    elif options.out is None:
        options.out = RESULTS
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print a summary and write the files; return the exit status."""
    started = time.monotonic()
    options = parse(arguments)
    if options.list:
        show()
        return 0
    command = list(sys.argv[1:] if arguments is None else arguments)
    if options.dry_run:
        os.environ["JAX_PLATFORMS"] = "cpu"  # of the children; this process has no jax
    try:
        facts = ask(command, seed=options.seed, dry_run=options.dry_run)
    except RuntimeError as error:
        print(error, file=sys.stderr)
        return 2
    name = "dry-run" if options.dry_run else folder_name(facts["device"])
    folder = options.out / name
    if problem := why_not(folder, options.archive):
        print(f"error: {problem}", file=sys.stderr)
        return 2
    print(f"{facts['device']}, up to {options.minutes:g} minutes, into {folder}", flush=True)
    context = Context(
        backend="reference" if options.dry_run else "sm90",
        scale="tiny" if options.dry_run else "quick" if options.quick else "full",
        seed=options.seed,
    )
    until = started + 60 * options.minutes
    failed = run(options, folder, context, facts, until)
    print()
    print(report.write(folder, dry_run=options.dry_run), flush=True)
    draw(folder, dry_run=options.dry_run)
    if options.archive is not None:
        pack(folder, options.archive)
        print(f"Packed: {options.archive}")
    print(f"Written: {folder}")
    return int(failed)


def run(
    options: argparse.Namespace,
    folder: Path,
    context: Context,
    facts: dict[str, Any],
    until: float,
) -> bool:
    """Run the sections that were asked for; return whether a case failed."""
    wanted = [SECTIONS[name] for name in dict.fromkeys(options.sections) or SECTIONS]
    labels = {"dry_run": True} if options.dry_run else {}
    labels |= {"quick": True} if options.quick else {}
    failed = False
    for number, section in enumerate(wanted):
        now = time.monotonic()
        last = number == len(wanted) - 1
        store = Store(folder / section.name)
        if options.fresh:
            store.clear()
        ran = run_section(
            section.name,
            section.module,
            section.cases(context.scale),
            store,
            context,
            provenance=facts,
            until=until if last else now + section.share * (until - now),
            retry_failed=options.retry_failed,
            labels=labels,
        )
        print(outcome(section.name, ran, time.monotonic() - now), flush=True)
        failed |= bool(ran.failed or ran.stopped)
    return failed


def outcome(name: str, ran: Ran, took_s: float) -> str:
    """Say in a line how a section went."""
    text = f"{name}: {ran.ok} ok, {ran.failed} failed, {ran.skipped} skipped in {took_s:.0f} s"
    if ran.earlier:
        text += f"; {ran.earlier} measured earlier"
    if ran.left:
        text += f"; {ran.left} left: run the same command again"
    return text + (f"; given up: {ran.stopped}" if ran.stopped else "")


def draw(folder: Path, *, dry_run: bool) -> None:
    """Draw what was measured; figures are no reason to lose a run."""
    from experiments.bench.kernels.figures import draw_all

    try:
        for path, without in draw_all(report.read(folder), folder / "figures", dry_run=dry_run):
            print(
                f"Drawn: {path.name}" + (f"; unmeasured: {', '.join(without)}" if without else "")
            )
    except ImportError as error:
        print(f"No figures: {error}", file=sys.stderr)


def show() -> None:
    """Print the sections."""
    for section in SECTIONS.values():
        print(f"{section.name:12s} {len(section.cases('full')):5d} cases  {section.title}")
