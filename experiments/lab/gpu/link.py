"""Stage `probe`: link rates from a CUDA program without jax (`probe.cu`)."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from experiments.children import run
from experiments.lab.gpu.cases import Row, Unmeasurable
from experiments.lab.gpu.worker import Settings

_BUILD_S: Final = 30.0
_RUN_S: Final = 25.0
_OPTIONS: Final = {
    "promote.so": ("-shared", "-cudart=none", "-Xcompiler=-fPIC"),
    "probe": ("-std=c++17", "-gencode=arch=compute_90a,code=sm_90a"),
}
# promote.c, preloaded, asks for L2 promotion in the TMA descriptors that jax makes.
_SOURCES: Final = {"probe": "probe.cu", "promote.so": "promote.c"}


def build(name: str, folder: Path) -> Path:
    """Build one of the two programs, unless newer than its source."""
    source, out = Path(__file__).with_name(_SOURCES[name]), folder / name
    if out.exists() and out.stat().st_mtime > source.stat().st_mtime:
        return out
    if shutil.which("nvcc") is None:
        raise Unmeasurable(f"no nvcc in PATH, which builds {source.name}")
    folder.mkdir(parents=True, exist_ok=True)
    command = ["nvcc", "-O3", *_OPTIONS[name], str(source), "-o", str(out), "-ldl"]
    done = run(command, limit_s=_BUILD_S)
    if done.code != 0:
        raise Unmeasurable(f"nvcc does not build {source.name}: {done.why}")
    return out


def measure(spec: Mapping[str, Any], settings: Settings) -> list[Row]:
    """Return a row for each rate: copy engine, SMs' kinds of reads."""
    del spec
    if settings.tiny:
        raise Unmeasurable("no GPU in a dry run")
    folder = Path(settings.folder)
    build("promote.so", folder)
    probe = build("probe", folder)
    done = run([str(probe)], limit_s=_RUN_S)
    rows = [json.loads(line) for line in done.out.splitlines() if line.startswith("{")]
    rates = [row for row in rows if "gbps" in row]
    if not rates:
        raise RuntimeError(
            f"the probe prints no rate (exit status {done.code}): {rows or done.why}"
        )
    return rates
