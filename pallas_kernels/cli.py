"""`python -m pallas_kernels`: backends and stored executables; kernels compiled for absent GPUs."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from pallas_kernels import tuned_results
from pallas_kernels.ahead_of_time import TARGETS
from pallas_kernels.capability import capabilities, device
from pallas_kernels.ops import OPS
from pallas_kernels.repository import Repository, RepositoryError

WRONG = 2
"""Exit status for a wrong argument or a missing part."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return the exit status.

    Args:
      arguments: words of the command line; None for those of this process.
    """
    parser = argparse.ArgumentParser(prog="python -m pallas_kernels", description=__doc__)
    commands = parser.add_subparsers(dest="command", metavar="command")
    text = "backends, ops, stored executables and measured rates (default)"
    listing = commands.add_parser("list", help=text, description=text)
    listing.add_argument(
        "--folder", type=Path, help="the repository; default: the user's cache folder"
    )
    listing.set_defaults(run=_list)
    text = "compile for absent GPUs, and check the code"
    check = commands.add_parser("check", help=text, description=text)
    check.add_argument("--target", action="append", choices=sorted(TARGETS), help="default: all")
    check.add_argument("--op", action="append", choices=OPS, help="default: all")
    check.add_argument("--part", metavar="I/N", help="every n-th program of each op, from i on")
    check.add_argument("--json", action="store_true", help="a JSON object a line")
    check.set_defaults(run=_check)
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
    print(f"repository {repository.folder}: executables: {len(entries)}")
    for entry in entries:
        of = entry.identity
        print(f"  {of.op}  {of.name}  {of.device}  {entry.nbytes / 1e3:.0f} kB  {entry.made}")
    files = [path for where in tuned_results.folders() for path in sorted(where.glob("*.json"))]
    print(f"measured rates: {', '.join(path.name for path in files) or 'none'}")
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
