"""Section `sanitizer`: NVIDIA's compute-sanitizer on one small kernel of each kind.

racecheck finds unordered writes and reads of shared memory, initcheck reads of device memory that
nothing has written.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from experiments.gpu import Case, Context, Row, Scale
from experiments.gpu.cases import Unmeasurable
from experiments.gpu.kernels.sanitized import KERNELS

TOOL = "compute-sanitizer"
CHECKS = ("racecheck", "initcheck")
LIMIT_S = 120.0  # the tool makes everything tens of times slower
MOST_WORDS = 500
_SUMMARIES = (
    re.compile(r"RACECHECK SUMMARY: \d+ hazards? displayed \((\d+) errors?, (\d+) warnings?\)"),
    re.compile(r"ERROR SUMMARY: (\d+) errors?()"),
)


def cases(scale: Scale) -> list[Case]:
    """List every check of every kernel."""
    kernels = KERNELS[:1] if scale == "tiny" else KERNELS
    return [
        Case(spec={"check": check, "kernel": kernel}, limit_s=LIMIT_S, least_s=20.0, host="either")
        for check in CHECKS
        for kernel in kernels
    ]


def measure(spec: Mapping[str, Any], context: Context) -> list[Row]:
    """Run a kernel once under a check.

    Raises:
      RuntimeError: the check found errors or gave no summary; the message quotes the tool.
      Unmeasurable: the tool is not installed.
    """
    tool = find()
    if tool is None:
        raise Unmeasurable(f"{TOOL} is neither on the PATH nor under CUDA_HOME")
    command = [
        *(tool, "--tool", spec["check"], "--print-limit", "10"),
        *(sys.executable, "-m", "experiments.gpu.kernels.sanitized", spec["kernel"]),
        json.dumps(asdict(context)),
    ]
    with tempfile.TemporaryFile() as said:
        # in this process's group and without its own limit: the run ends both if it hangs
        done = subprocess.run(command, stdout=said, stderr=subprocess.STDOUT, check=False)  # noqa: S603
        said.seek(0)
        text = said.read().decode("utf-8", "replace")
    return [judged(text, done.returncode)]


def judged(text: str, code: int) -> Row:
    """Return the row of a check without errors.

    Raises:
      RuntimeError: the check found errors or gave no summary.
    """
    found = next((m for one in _SUMMARIES if (m := one.search(text))), None)
    if found is None:
        raise RuntimeError(f"no summary (exit status {code}): {_words(text)[-MOST_WORDS:]}")
    errors, warnings = int(found[1]), int(found[2] or 0)
    if errors or code:
        raise RuntimeError(
            f"{errors} errors, {warnings} warnings, exit status {code}: {_words(text)[:MOST_WORDS]}"
        )
    return {"errors": errors, "warnings": warnings}


def find() -> str | None:
    """Return the tool's path, or None if it is not installed."""
    home = os.environ.get("CUDA_HOME", "/usr/local/cuda")  # the installer's default
    return shutil.which(TOOL) or shutil.which(TOOL, path=str(Path(home) / "bin"))


def _words(text: str) -> str:
    """Return the tool's output without its margin and the program's own lines."""
    lines = [line.strip("= ") for line in text.splitlines() if line.startswith("====")]
    return "; ".join(filter(None, lines)) or " ".join(text.split())
