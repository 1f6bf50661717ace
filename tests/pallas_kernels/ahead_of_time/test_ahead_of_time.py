"""The real kernels, compiled for GPUs that are not here: resources, instructions, no copy of W."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pallas_kernels.ahead_of_time import TARGETS, missing
from pallas_kernels.ahead_of_time.__main__ import FAULTS
from pallas_kernels.ops import OPS, programs

ROOT = Path(__file__).parents[3]
WHEELS = ROOT / ".venv-aot"  # where `make aot` puts the compiler, beside this environment

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not WHEELS.is_dir() and bool(missing()), reason=f"no CUDA compiler for jax: {missing()}"
    ),
]


def run(*command: str, limit_s: float = 600.0) -> list[Any]:
    """Run a module in a process of its own and return the JSON lines it printed."""
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


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("target", TARGETS)
def test_every_configuration_compiles_as_it_should(target: str, op: str) -> None:
    lines = run("pallas_kernels.ahead_of_time", "--json", "--target", target, "--op", op)
    assert {line["name"]: line["problems"] for line in lines if line["problems"]} == {}
    names = {program.name for program in programs(op, TARGETS[target].sm_count)}
    assert names == {line["name"] for line in lines}
    for line in lines:
        assert line["report"]["opcodes"]["HGMMA"] > 0, line["name"]
        assert 0 < line["report"]["registers"] <= 255, line["name"]


def test_faults_are_found() -> None:
    found = run("tests.pallas_kernels.ahead_of_time.controls", limit_s=300.0)
    wrong = {name: " ".join(problems) for name, problems in found}
    assert wrong.pop("good") == ""
    for name, expected in {
        "spills": "spills",
        "multicast": "0 multicast loads, expected some",
        "opcodes": "has UTMAREDG",
        "shared": "bytes of shared memory",
        "sliced": "XLA touches a host argument",
        "scanned": "XLA touches a host argument",
    }.items():
        assert expected in wrong.pop(name), name
    assert not wrong
