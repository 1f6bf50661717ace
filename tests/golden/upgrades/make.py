"""Folders of this version, for later ones to read: `python -m tests.golden.upgrades.make 1`."""

from __future__ import annotations

import operator
import subprocess
import sys
from pathlib import Path

import jax

from c2c.systems.medusa import write_artefact
from pallas_kernels.program import Argument, Program
from pallas_kernels.repository import Repository, identity
from pallas_kernels.repository.store import compiled_for
from tests.systems.medusa.cases import made

__all__ = ["HERE", "program"]

HERE = Path(__file__).parent
_RUN = ("workload=poisson", "workload.requests=20", "workload.rate_rps=2", "figures=false")


def program() -> Program:
    """Return the program whose executable is stored."""
    return Program(
        op="golden",
        name="negative",
        function=operator.neg,  # built in: jax writes where a function of a file is
        arguments=(Argument(shape=(4,), dtype="float32"),),
        shared_bytes=0,
        opcodes=frozenset(),
        key=(),
    )


def main(arguments: list[str]) -> int:
    """Write a folder; return the exit status.

    Its number must be new: folders of earlier versions stay. Make one when a format changes, before
    the release that has it.
    """
    (number,) = arguments
    folder = HERE / number
    folder.mkdir()
    run = [sys.executable, "-m", "c2c", "simulate", *_RUN, "folder=run"]
    subprocess.run(run, check=True, cwd=folder)
    (folder / "run/.lock").unlink(missing_ok=True)
    write_artefact(folder / "artefact.medusa", made().artefact)
    # No path of this machine in the executable.
    jax.config.update("jax_hlo_source_file_canonicalization_regex", ".*/")
    store = folder / "executables"
    store.mkdir(mode=0o700)
    device = jax.devices()[0]
    executable, seconds = compiled_for(program(), device, to_store=True)
    Repository(store).put(identity(program(), device), executable, compile_s=seconds)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
