"""Running modules that compile GPU kernels without a GPU, in a process of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pallas_kernels.ahead_of_time import missing
from pallas_kernels.ahead_of_time.__main__ import FAULTS

ROOT = Path(__file__).parents[1]
WHEELS = ROOT / ".venv-aot"  # where `make aot` puts the compiler, beside this environment

needs_compiler = pytest.mark.skipif(
    not WHEELS.is_dir() and bool(missing()), reason=f"no CUDA compiler for jax: {missing()}"
)


def run(*command: str, limit_s: float = 600.0) -> list[Any]:
    """Run a module with its arguments and return the JSON lines it printed."""
    path = os.pathsep.join(filter(None, (str(WHEELS), str(ROOT), os.environ.get("PYTHONPATH"))))
    done = subprocess.run(
        [sys.executable, "-m", *command],
        env=os.environ | {"PYTHONPATH": path},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=limit_s,
    )
    assert done.returncode in (0, FAULTS), done.stderr[-3000:]
    lines = [line for line in done.stdout.splitlines() if line.startswith(("{", "["))]
    return [json.loads(line) for line in lines]
