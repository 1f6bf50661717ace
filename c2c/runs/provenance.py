"""Provenance of a result."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

__all__ = ["provenance"]

PACKAGES = ("c2c", "jax", "jaxlib", "numpy", "numba", "pyarrow", "matplotlib", "hydra-core")


def provenance(*, seed: int | None = None) -> dict[str, Any]:
    """Return command, code version, packages, machine, start time, outside content keys."""
    return {
        "started_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": [Path(sys.argv[0]).name, *sys.argv[1:]],
        "seed": seed,
        **_of_process(),
        "device": _device(),
    }


@cache
def _of_process() -> dict[str, Any]:
    return {
        "git": _git(),
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in PACKAGES},
        "platform": platform.platform(),
        "machine": platform.machine(),
        "cpu": _cpu(),
        "cpu_count": os.cpu_count(),
    }


def _git() -> dict[str, Any]:
    git = shutil.which("git")
    if git is None:
        return {"commit": None, "dirty": None, "why": "git is not installed"}
    status = subprocess.run(  # noqa: S603 (fixed arguments, no shell)
        [git, "status", "--porcelain=v2", "--branch"],
        cwd=Path(__file__).parent, capture_output=True, text=True, timeout=10, check=False,
    )  # fmt: skip
    head = re.match(r"# branch\.oid ([0-9a-f]+)\n", status.stdout)
    if head is None:
        return {"commit": None, "dirty": None, "why": status.stderr.strip() or "no commit"}
    return {"commit": head[1], "dirty": bool(re.search("^[^#]", status.stdout, re.MULTILINE))}


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _cpu() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _device() -> str:
    jax = sys.modules.get("jax")
    return "cpu (jax not loaded)" if jax is None else str(jax.devices()[0].device_kind)
