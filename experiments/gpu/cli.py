"""Measure this machine's GPU, its link to host memory and our kernels on them.

    python -m experiments.gpu [first|second|third|fourth | section ...] [--minutes 9]

A lease is four calls of nine minutes, most valuable first; without a name the first one runs.
Earlier results are kept: run the same command again to resume. Results are in
<out>/<device>/<section>/<section>.parquet, with a summary beside them and everything in one
archive, which is complete at any time. `docs/gpu.md` explains sections and columns. The exit
status is 2 without a GPU, and 1 if a case failed.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tarfile
import tempfile
import time
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import get_args

from experiments.gpu.cases import Context, Limits
from experiments.gpu.describe import LIMIT_S, ask
from experiments.gpu.device import folder_name
from experiments.gpu.files import unpack
from experiments.gpu.guard import why_not
from experiments.gpu.placing import Wanted
from experiments.gpu.section import Call
from experiments.gpu.sections import CALLS, SECTIONS
from experiments.gpu.session import Session, Settings

RESULTS = Path(__file__).parents[1] / "results"
MINUTES, DRY_RUN_MINUTES = 9.0, 60.0
END_S, END_SHARE = 15.0, 0.05
"""Time kept free for the end of a run: seconds, or a share of the run if that is less."""


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Return the options."""
    parser = argparse.ArgumentParser(
        prog="python -m experiments.gpu",
        description=__doc__,
        formatter_class=argparse.RawTextHelpFormatter,
    )
    parser.add_argument(
        "sections",
        nargs="*",
        metavar="name",
        help=f"one of {', '.join(CALLS)}; or sections: {', '.join(SECTIONS)}",
    )
    parser.add_argument("--list", action="store_true", help="list calls, sections and cases")
    parser.add_argument("--minutes", type=float, help=f"stop after this time ({MINUTES:g})")
    parser.add_argument("--quick", action="store_true", help="few cases, few repetitions")
    parser.add_argument("--dry-run", action="store_true", help="tiny sizes on a CPU; no results")
    parser.add_argument("--fresh", action="store_true", help="measure everything again")
    parser.add_argument("--retry-failed", action="store_true", help="run failed cases again")
    parser.add_argument("--out", type=Path, help=f"folder of results ({RESULTS.name}/)")
    parser.add_argument(
        "--archive", type=Path, help="pack all results into this .tar.gz (<out>/<device>.tar.gz)"
    )
    parser.add_argument("--resume", type=Path, help="archive of an earlier run to resume")
    for name, default, what in (
        ("start", Limits().start_s, "longest start of a process"),
        ("case", Limits().case_s, "longest time of a case"),
        ("first-case", Limits().first_s, "longest time of a process's first case"),
    ):
        parser.add_argument(
            f"--{name}-limit",
            type=float,
            default=default,
            metavar="S",
            help=f"{what} ({default:g})",
        )
    parser.add_argument(
        "--weights",
        choices=get_args(Wanted),
        default="auto",
        help="memory of W; auto: host memory until reading it costs two processes (auto)",
    )
    parser.add_argument(
        "--host-read", choices=("hang", "crash"), help="simulate this fault of reads of host memory"
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of the random inputs (0)")
    options = parser.parse_args(arguments)
    options.call = Call(sections=tuple(dict.fromkeys(options.sections)))
    if len(options.sections) < 2 and (name := (options.sections or ["first"])[0]) in CALLS:
        options.call = CALLS[name]
    for name in options.call.sections:
        if name not in SECTIONS:
            parser.error(
                f"name {name!r}: expected one of {', '.join(CALLS)} alone, or sections of "
                f"{', '.join(SECTIONS)}"
            )
    if options.host_read and not options.dry_run:
        parser.error(f"--host-read={options.host_read}: expected --dry-run with it")
    _refuse_others(parser, options)
    return options


def _refuse_others(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """Refuse impossible values, and set the defaults that depend on other options."""
    if options.minutes is None:
        options.minutes = DRY_RUN_MINUTES if options.dry_run else MINUTES
    for name in ("minutes", "start_limit", "case_limit", "first_case_limit"):
        if not (value := getattr(options, name)) > 0:
            parser.error(f"--{name.replace('_', '-')}={value}: expected a number above 0")
    if options.archive is not None and not options.archive.name.endswith(".tar.gz"):
        parser.error(f"--archive={options.archive}: expected a name that ends in .tar.gz")
    if options.resume is not None and not _is_archive(options.resume):
        parser.error(f"--resume={options.resume}: expected an archive of an earlier run")
    for name in options.call.sections:
        if SECTIONS[name].rehearses and not options.dry_run:
            parser.error(f"section {name!r}: expected --dry-run with it, it measures nothing")
    if options.dry_run:
        if options.out is not None and options.out.resolve().is_relative_to(RESULTS.resolve()):
            parser.error(f"--out={options.out}: expected another folder, a dry run has no results")
        if options.out is None:
            options.out = Path(tempfile.mkdtemp(prefix="c2c-gpu-dry-run-"))
    elif options.out is None:
        options.out = RESULTS


def _is_archive(path: Path) -> bool:
    return path.is_file() and tarfile.is_tarfile(path)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print a summary and write the files; return the exit status."""
    started = time.monotonic() - spent_s()
    options = parse(arguments)
    if options.list:
        show()
        return 0
    command = list(sys.argv[1:] if arguments is None else arguments)
    if options.dry_run:
        os.environ["JAX_PLATFORMS"] = "cpu"  # for the children; this process has no jax
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # results so far are still summarised
    until = started + 60 * options.minutes - min(END_S, END_SHARE * 60 * options.minutes)
    try:
        facts = ask(
            command,
            seed=options.seed,
            dry_run=options.dry_run,
            limit_s=min(LIMIT_S, until - time.monotonic()),
        )
    except RuntimeError as error:
        print(error, file=sys.stderr)
        return 2
    name = "dry-run" if options.dry_run else folder_name(facts["device"])
    folder = options.out / name
    archive = options.archive or options.out / f"{name}.tar.gz"
    if problem := why_not(folder, archive):
        print(f"error: {problem}", file=sys.stderr)
        return 2
    print(f"{facts['device']}, up to {options.minutes:g} minutes, into {folder}", flush=True)
    if options.resume is not None:
        unpack(options.resume, options.out)
    if any(folder.glob("*/*.parquet")) and find_spec("pyarrow") is None:
        print(f"{folder} holds tables: install pyarrow, or choose another --out", file=sys.stderr)
        return 2
    call: Call = options.call
    session = Session(
        Settings(
            folder=folder,
            archive=archive,
            context=Context(
                backend="reference" if options.dry_run else "sm90",
                scale="tiny" if options.dry_run else "quick" if options.quick else call.scale,
                seed=options.seed,
                folder=str(folder.resolve()),
                host_fault=options.host_read or "",
            ),
            facts=facts,
            until=until,
            limits=Limits(
                start_s=options.start_limit,
                case_s=min(options.case_limit, call.case_s),
                first_s=min(options.first_case_limit, call.case_s),
            ),
            weights=options.weights,
            fresh=options.fresh,
            retry_failed=options.retry_failed,
            dry_run=options.dry_run,
        )
    )
    interrupted = False
    try:
        session.run([SECTIONS[name] for name in call.sections])
    except KeyboardInterrupt:
        interrupted = True
        print("Interrupted: these are the results so far.", file=sys.stderr)
    text = session.keeper.refresh(now=True)
    print(f"\n{text or session.keeper.summary.read_text('utf-8')}", flush=True)
    print(f"Written: {folder}, {session.keeper.summary}, {session.settings.archive}")
    return 130 if interrupted else int(session.failed)


def spent_s() -> float:
    """Return the seconds since `.ci/gpu` began to look for a Python; 0 if it was not used."""
    begun = os.environ.get("C2C_GPU_BEGUN", "")
    return max(0.0, time.time() - float(begun)) if begun else 0.0


def show() -> None:
    """Print calls and sections; for a section that cannot be listed, the error."""
    for name, call in CALLS.items():
        print(f"{name:12s} {', '.join(call.sections)}")
    for section in SECTIONS.values():
        try:
            found = f"{len(section.cases('full')):5d} cases"
        except (ImportError, RuntimeError) as error:
            found = f"  unavailable ({error})"
        print(f"{section.name:12s} {found}  {section.title}")
