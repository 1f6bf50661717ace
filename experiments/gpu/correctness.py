"""Section `correctness`: the tests marked gpu, each file a case; a row a test."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from experiments.gpu.cases import Case, Context, Row, Scale

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "tests" / "gpu"
ORDER = (
    "test_host_operand.py",
    "test_hybrid_gemm.py",
    "test_hybrid_gemm_long.py",
    "test_compile_counts.py",
    "test_quantized_gemm.py",
    "test_grouped_gemm.py",
    "test_attention.py",
    "test_gather_rows.py",
    "test_transformer.py",
    "test_shared_pool.py",
)
LIMIT_S, LEAST_S = 300.0, 120.0
# The project's own options need packages that a GPU machine may lack (see pyproject.toml).
OPTIONS = ("-o", "addopts=", "--import-mode=importlib", "-o", "filterwarnings=default")


def cases(scale: Scale) -> list[Case]:
    """List the test files, those that everything else rests on first."""
    names = [path.name for path in FOLDER.glob("test_*.py")]
    names.sort(key=lambda name: (ORDER.index(name) if name in ORDER else len(ORDER), name))
    if scale == "tiny":
        names = names[:1]
    return [Case(spec={"file": name}, limit_s=LIMIT_S, least_s=LEAST_S) for name in names]


def measure(spec: Mapping[str, Any], _: Context) -> list[Row]:
    """Run one file; a failed test is a row, not a failed case.

    Raises:
      RuntimeError: pytest ended without a report; with its last words.
    """
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        done = subprocess.run(  # noqa: S603 - our own tests
            [
                *(sys.executable, "-m", "pytest", *OPTIONS, "-q", "-p", "no:cacheprovider"),
                *("--maxfail=20", "-m", "gpu", f"--junitxml={report}", str(FOLDER / spec["file"])),
            ],
            cwd=ROOT,
            env=os.environ
            | {
                "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
                "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
                # XLA's own products are only compared with here: their speed does not matter
                "XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} --xla_gpu_autotune_level=0",
            },
            capture_output=True,
            text=True,
            check=False,
        )
        if not report.exists() or done.returncode not in (0, 1):
            raise RuntimeError(f"pytest ended with {done.returncode}: {_last(done)}")
        return rows_of(report.read_text("utf-8"))


def rows_of(report: str) -> list[Row]:
    """Return a row for each test of a JUnit report."""
    rows: list[Row] = []
    for test in ET.fromstring(report).iter("testcase"):  # noqa: S314 - pytest's own
        row: Row = {"test": test.get("name"), "test_s": float(test.get("time", 0)), "result": "ok"}
        for kind in ("failure", "error", "skipped"):
            if (found := test.find(kind)) is not None:
                row |= {"result": kind, "message": (found.get("message") or "")[:600]}
        rows.append(row)
    if not rows:
        raise RuntimeError("pytest found no test in this file")
    return rows


def _last(done: subprocess.CompletedProcess[str]) -> str:
    return " ".join((done.stdout + done.stderr).split())[-500:]
