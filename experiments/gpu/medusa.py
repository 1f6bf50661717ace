"""Section `medusa`: graphs captured by two processes, restored by a third, outputs compared.

Kernels that compute come from images; every word that restoring could get wrong shows in what they
leave. Needs .venv-driver (`make driver`, can be copied) and a driver; no jax runs here.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from c2c.errors import DataError
from experiments.gpu.cases import Case, Context, Row, Scale, Unmeasurable
from experiments.gpu.processes import ROOT
from experiments.medusa.restore import measure as restored

PROGRAMS: Mapping[Scale, int] = {"full": 16, "quick": 4, "tiny": 1}
BINDINGS = ROOT / ".venv-driver"


def cases(scale: Scale) -> list[Case]:
    """List the programs: streams and graphs with edges by turns."""
    return [Case(spec={"program": f"computing:{k}"}) for k in range(PROGRAMS[scale])]


def measure(spec: Mapping[str, Any], context: Context) -> list[Row]:
    """Capture, analyse and restore one program in processes of their own."""
    del context
    if not BINDINGS.is_dir():
        raise Unmeasurable("the driver's calls are not installed: make driver")
    paths = (str(ROOT), str(BINDINGS), os.environ.get("PYTHONPATH", ""))
    env = {"PYTHONPATH": os.pathsep.join(filter(None, paths))}
    try:
        row = restored("driver", spec["program"], env)
    except DataError as problem:
        if "libcuda" in str(problem) or "DynamicLib" in str(problem):
            raise Unmeasurable(str(problem)) from problem
        raise
    return [
        {
            "nodes": row["nodes"],
            "graphs": row["graphs"],
            "refused": len(row["refused"]),
            "capture_s": row["capture_s"],
            "analysis_s": row["analysis_s"],
            "restore_s": row["restore_s"],
            "us_a_node": 1e6 * row["restore_s"] / max(row["nodes"], 1),
            "stored_bytes": row["stored_bytes"],
        }
    ]
