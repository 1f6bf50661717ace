"""`python -m pallas_kernels`: lists backends, stored and tuned kernels; compiles and checks."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path

from pallas_kernels import tuned_results
from pallas_kernels.ahead_of_time import TARGETS
from pallas_kernels.capability import capabilities, device
from pallas_kernels.ops import OPS, programs
from pallas_kernels.repository import Repository, RepositoryError

WRONG = 2
"""Exit status for a wrong argument or a missing part."""

FAULTS = 3
"""Exit status for a failed check."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return the exit status.

    Args:
      arguments: words of the command line; None for those of this process.
    """
    parser = argparse.ArgumentParser(prog="python -m pallas_kernels", description=__doc__)
    commands = parser.add_subparsers(dest="command", metavar="command")

    def command(
        name: str, run: Callable[[argparse.Namespace], int], text: str
    ) -> argparse.ArgumentParser:
        made = commands.add_parser(name, help=text, description=text)
        made.set_defaults(run=run)
        return made

    def folder(made: argparse.ArgumentParser) -> None:
        made.add_argument(
            "--folder", type=Path, help="the repository; default: the user's cache folder"
        )

    folder(command("list", _list, "backends, ops, stored executables and tuned files (default)"))
    build = command(
        "build", _build, "compile the configurations in use for this GPU and store them"
    )
    folder(build)
    build.add_argument("--op", action="append", choices=OPS, help="default: all")
    build.add_argument("--match", default="", help="only programs whose name contains this")
    folder(command("verify", _verify, "check every stored executable"))
    folder(command("prune", _prune, "remove what these versions cannot load"))
    check = command("check", _check, "compile for absent GPUs, and check the code")
    check.add_argument("--target", action="append", choices=sorted(TARGETS), help="default: all")
    check.add_argument("--op", action="append", choices=OPS, help="default: all")
    check.add_argument("--part", metavar="I/N", help="every n-th program of each op, from i on")
    check.add_argument("--json", action="store_true", help="a JSON object a line")
    given = sys.argv[1:] if arguments is None else arguments
    options = parser.parse_args(given or ["list"])
    if options.command is None:
        parser.error("expected a command")
    try:
        status: int = options.run(options)
    except RepositoryError as error:
        print(error, file=sys.stderr)
        return WRONG
    return status


def _list(options: argparse.Namespace) -> int:
    here = device()
    print(f"device: {here.kind} ({here.platform})")
    for backend, lack in capabilities(here).items():
        print(f"  {backend:<10} {'not here: ' + lack if lack else 'runs here'}")
    print(f"ops: {', '.join(OPS)}")
    repository = Repository(options.folder)
    entries = repository.entries()
    print(f"repository {repository.folder}: {_number(len(entries), 'executable')}")
    rows = [
        (e.identity.op, e.identity.name, e.identity.device, f"{e.nbytes / 1e3:.0f} kB", e.made)
        for e in entries
    ]
    _table(("op", "program", "device", "size", "made"), rows)
    found = [path for where in tuned_results.folders() for path in sorted(where.glob("*.json"))]
    print(f"tuned: {_number(len(found), 'file')}")
    for path in found:
        tuned = tuned_results.read(path)
        print(f"  {path.name}: {_number(len(tuned.entries), 'problem')}")
    return 0


def _build(options: argparse.Namespace) -> int:
    from pallas_kernels.arguments import sm_count
    from pallas_kernels.capability import missing

    here = device()
    if lack := missing("sm90", here):
        print(f"nothing to build: {lack}", file=sys.stderr)
        return WRONG
    repository = Repository(options.folder)
    wanted = [
        program
        for op in options.op or OPS
        for program in programs(op, sm_count("sm90"))
        if options.match in program.name
    ]
    if not wanted:
        print(f"--match {options.match!r}: no program's name contains it", file=sys.stderr)
        return WRONG
    for number, program in enumerate(wanted, 1):
        start = time.perf_counter()
        repository.get(program)
        seconds = time.perf_counter() - start
        print(f"{number}/{len(wanted)} {program.op}: {program.name} ({seconds:.1f} s)", flush=True)
    return 0


def _verify(options: argparse.Namespace) -> int:
    findings = Repository(options.folder).verify()
    wrong = [found for found in findings if found.why]
    _table(("file", "finding"), [(found.file, found.why) for found in wrong])
    print(f"{_number(len(findings) - len(wrong), 'sound executable')}, {len(wrong)} findings")
    return FAULTS if wrong else 0


def _prune(options: argparse.Namespace) -> int:
    removed = Repository(options.folder).prune()
    for name in removed:
        print(f"removed {name}")
    print(f"{_number(len(removed), 'file')} removed")
    return 0


def _check(options: argparse.Namespace) -> int:
    # In a process of its own: the compiler reads its settings once, when it is first used.
    command = [sys.executable, "-m", "pallas_kernels.ahead_of_time"]
    for name, values in (("target", options.target or ()), ("op", options.op or ())):
        for value in values:
            command += [f"--{name}", value]
    command += [f"--part={options.part}"] if options.part is not None else []
    command += ["--json"] if options.json else []
    checkout = Path(__file__).parents[1]
    paths = [os.environ.get("PYTHONPATH"), str(checkout), str(checkout / ".venv-aot")]
    path = os.pathsep.join(filter(None, paths))
    environment = os.environ | {"PYTHONPATH": path}
    return subprocess.run(command, env=environment, check=False).returncode  # noqa: S603 - our own module


def _table(heads: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> None:
    if not rows:
        return
    if sys.stdout.isatty() and find_spec("rich"):
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text

        table = Table(*heads)
        for row in rows:
            table.add_row(*map(Text, row))
        Console().print(table)
        return
    widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
    for row in (heads, *rows):
        print("  " + "  ".join(map(str.ljust, row, widths)).rstrip())


def _number(count: int, what: str) -> str:
    """Return a count with its noun.

    >>> _number(1, "file"), _number(2, "file")
    ('1 file', '2 files')
    """
    return f"{count} {what}" if count == 1 else f"{count} {what}s"
