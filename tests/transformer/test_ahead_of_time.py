"""A forward pass with weights in host memory, compiled for an H200 where there is none."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pallas_kernels.ahead_of_time import missing

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rows", "chunk", "experts"),
    [(8, 1, 0), (1, 512, 0), (8, 1, 8)],
    ids=["decode", "chunk", "moe"],
)
def test_weights_are_read_by_kernels_only(rows: int, chunk: int, experts: int) -> None:
    if reason := missing():
        pytest.skip(reason)
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "tests.transformer.compile_ahead",
            *map(str, (rows, chunk, experts)),
        ],
        cwd=ROOT,
        env=dict(os.environ),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    report = json.loads(done.stdout.splitlines()[-1])
    assert report["host_copies"] == []
    assert report["cache_copies"] == []
    assert report["host_argument_bytes"] == report["weight_bytes"] > 0
    assert report["spilled_bytes"] == 0
    # a scan: one layer's kernels, however many layers: qkv, o, attention, gate_up, down; head
    assert report["kernels"] == 6
