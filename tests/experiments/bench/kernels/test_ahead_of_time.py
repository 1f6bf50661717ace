"""The benchmark's own kernels compile for an H200 and are what they are meant to be."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from pallas_kernels.ahead_of_time import missing

ROOT = Path(__file__).parents[4]


@pytest.mark.skipif(bool(missing()), reason=missing() or "the compiler is here")
def test_probes_and_tiles_compile_for_an_h200() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.experiments.bench.kernels.compile_probes"],
        capture_output=True,
        text=True,
        timeout=300,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"name"')]
    assert len(found) == 14
    assert [f for f in found if f["wrong"]] == []
