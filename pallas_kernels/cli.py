"""`python -m pallas_kernels`: backends, stored executables, and kernels for absent GPUs."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from pallas_kernels import tuned_results
from pallas_kernels.capability import capabilities, device
from pallas_kernels.ops import OPS
from pallas_kernels.repository import Repository, RepositoryError

WRONG = 2
"""Exit status for a wrong argument or a missing part."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m pallas_kernels", description=__doc__)
    commands = parser.add_subparsers(dest="command", metavar="command", required=True)
    text = "backends, ops, stored executables and measured rates (default)"
    listing = commands.add_parser("list", help=text, description=text)
    listing.add_argument(
        "--folder", type=Path, help="the repository; default: the user's cache folder"
    )
    commands.add_parser("check", help="compile for absent GPUs, and check the code", add_help=False)
    argv = list(sys.argv[1:] if arguments is None else arguments) or ["list"]
    options, words = parser.parse_known_args(argv)
    if options.command == "check":
        return _check(words)
    if words:
        parser.error(f"unrecognized arguments: {' '.join(words)}")
    try:
        _list(options.folder)
    except RepositoryError as error:
        print(error, file=sys.stderr)
        return WRONG
    return 0


def _list(folder: Path | None) -> None:
    here = device()
    print(f"device: {here.kind} ({here.platform})")
    for backend, lack in capabilities(here).items():
        print(f"  {backend:<10} {'not here: ' + lack if lack else 'runs here'}")
    print(f"ops: {', '.join(OPS)}")
    repository = Repository(folder)
    entries = repository.entries()
    print(f"repository {repository.folder}: executables: {len(entries)}")
    for entry in entries:
        key = entry.identity
        print(f"  {key.op}  {key.name}  {key.device}  {entry.nbytes / 1e3:.0f} kB  {entry.made}")
    files = [path for where in tuned_results.folders() for path in sorted(where.glob("*.json"))]
    print(f"measured rates: {', '.join(path.name for path in files) or 'none'}")


def _check(words: Sequence[str]) -> int:
    # In a process of its own: the compiler reads its settings once, when it is first used.
    checkout = Path(__file__).parents[1]
    paths = [os.environ.get("PYTHONPATH"), str(checkout), str(checkout / ".venv-aot")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}
    command = [sys.executable, "-m", "pallas_kernels.ahead_of_time", *words]
    return subprocess.run(command, env=environment, check=False).returncode  # noqa: S603 - our own module
