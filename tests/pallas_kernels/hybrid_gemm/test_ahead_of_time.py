"""The real kernels, compiled for an H200 without one: resources, instructions, no copy of W."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from pallas_kernels.hopper import SHARED_BYTES_LIMIT

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        find_spec("jax_cuda13_plugin") is None,
        reason="no CUDA compiler for jax here: jax-cuda13-plugin is not installed",
    ),
]

BASE = {"rows": 2048, "k": 4096, "n": 16384, "cluster": 1, "sms": 132}
CASES: dict[str, dict[str, Any]] = {
    "prefill": BASE,
    "prefill, float32 out": BASE | {"out_dtype": "float32"},
    "cluster of 2": BASE | {"cluster": 2},
    "cluster of 4, [N, K] stack": BASE | {"cluster": 4, "w_layout": "nk", "layers": 3},
    "cluster of 8, float16": BASE | {"cluster": 8, "dtype": "float16", "out_dtype": "float16"},
    "128 rows": BASE | {"rows": 128},
    "decode": BASE | {"rows": 64, "n": 28672},
    "decode, one row, few columns": BASE | {"rows": 1, "n": 4096},
    "decode, [N, K], float32 out": BASE | {"rows": 8, "w_layout": "nk", "out_dtype": "float32"},
    "ragged": BASE | {"rows": 2001, "n": 16064, "k": 4160},
    "a slice of 16 SMs": BASE | {"sms": 16, "cluster": 2},
}


@pytest.fixture(scope="module")
def reports() -> dict[str, dict[str, Any]]:
    """Compile every case in one process; about 1.5 s each."""
    here = Path(__file__)
    done = subprocess.run(
        [sys.executable, str(here.with_name("compile_ahead.py"))],
        input="".join(json.dumps(case) + "\n" for case in CASES.values()),
        env=os.environ | {"PYTHONPATH": str(here.parents[3])},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    return dict(zip(CASES, map(json.loads, lines), strict=True))


@pytest.mark.parametrize("name", CASES)
def test_resources_and_instructions(name: str, reports: dict[str, dict[str, Any]]) -> None:
    report = reports[name]
    opcodes = report["opcodes"]
    assert report["spilled_bytes"]
    assert not any(report["spilled_bytes"])
    assert not report["serialised"]
    assert not {"LDL", "STL"} & opcodes.keys()
    assert report["shared_bytes"] <= report["shared_bytes_predicted"] <= SHARED_BYTES_LIMIT
    for opcode in ("HGMMA", "UTMALDG", "UTMASTG", "UTMAREDG", "USETMAXREG"):
        assert opcodes.get(opcode, 0) > 0, opcode
    assert (report["multicasts"] > 0) == (report["cluster"] > 1)


@pytest.mark.parametrize("name", CASES)
def test_w_is_read_where_it_lies(name: str, reports: dict[str, dict[str, Any]]) -> None:
    report = reports[name]
    assert report["host_bytes"] == report["w_bytes"]
    case = CASES[name]
    # ragged rows: padded copies of x and of the result before it is cut, of two bytes an element
    padded = 2 * (case["rows"] + 8) * (case["k"] + case["n"]) if case["rows"] % 8 else 0
    assert report["temporary_bytes"] < report["w_bytes"] // 8 + padded < report["w_bytes"]
