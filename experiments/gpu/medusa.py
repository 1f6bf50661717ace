"""Section `medusa`: graphs captured by two processes, restored by a third, outputs compared.

Programs: random ones, whose kernels compute, so that every wrongly restored word shows in their
output; decode steps of a transformer as XLA compiles them, at several batch sizes over one memory.

Rivals: capture after one warm-up (`capture_s`); capture on demand (`first_capture_s`, against
`first_graph_s` for restoring on demand).

Needs .venv-driver (`make driver`, can be copied) and a driver. jax compiles the steps in a process
that ends before any other begins.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from c2c.errors import DataError
from experiments.gpu.cases import Case, Context, Row, Scale, Unmeasurable
from experiments.gpu.device import is_without_driver, with_bindings
from experiments.medusa import steps
from experiments.medusa.restore import measure as restored

PROGRAMS: Mapping[Scale, int] = {"full": 16, "quick": 4, "tiny": 1}
SIZES: Mapping[Scale, str] = {"full": "1 2 4 8 16 32 48 64", "quick": "1 8", "tiny": "1"}
# Layers of Llama 8B's shape; two, since nodes of a layer are the same in all.
LLAMA_8B: Mapping[str, int] = {
    "layers": 2, "context": 256, "hidden": 4096, "heads": 32, "kv_heads": 8, "head_dim": 128,
    "intermediate": 14336,
}  # fmt: skip
SMALL: Mapping[str, int] = {
    "layers": 2, "context": 128, "hidden": 256, "heads": 4, "kv_heads": 2, "head_dim": 64,
    "intermediate": 512, "vocab": 512,
}  # fmt: skip


def cases(scale: Scale) -> list[Case]:
    """List the programs: random ones, then XLA's steps."""
    shape = SMALL if scale == "tiny" else LLAMA_8B
    spec = {"program": "xla", "batch_sizes": SIZES[scale], **shape}
    random = [Case(spec={"program": f"computing:{k}"}) for k in range(PROGRAMS[scale])]
    return [*random, Case(spec=spec, limit_s=300.0, least_s=60.0)]


def measure(spec: Mapping[str, Any], context: Context) -> list[Row]:
    """Capture, analyse and restore one program in separate processes."""
    del context
    env = {"PYTHONPATH": with_bindings()["PYTHONPATH"]}
    if spec["program"] != "xla":
        return [_row(_restored(spec["program"], env))]
    with tempfile.TemporaryDirectory() as folder:
        shape = {name: n for name, n in spec.items() if name not in ("program", "batch_sizes")}
        sizes = [int(size) for size in spec["batch_sizes"].split()]
        steps.compile_steps(Path(folder), sizes, shape, steps.environment())
        return [_row(_restored(f"xla:{folder}", env))]


def _restored(what: str, env: Mapping[str, str]) -> dict[str, Any]:
    try:
        return restored("driver", what, env)
    except DataError as problem:
        if is_without_driver(str(problem)):
            raise Unmeasurable(str(problem)) from problem
        raise


def _row(row: Mapping[str, Any]) -> Row:
    """Return the columns of a result; launch times are medians over batch sizes."""
    one_by_one, first, later = (
        statistics.median(row[name].values())
        for name in ("one_by_one_s", "first_launch_s", "launch_s")
    )
    return {
        "nodes": row["nodes"],
        "graphs": row["graphs"],
        "refused": len(row["refused"]),
        "warm_s": row["warm_s"],
        "capture_s": row["capture_s"],  # one warm-up each included
        "first_capture_s": row["first_capture_s"],
        "first_graph_s": row["first_graph_s"],
        "analysis_s": row["analysis_s"],
        "restore_s": row["restore_s"],
        "us_a_node": 1e6 * row["restore_s"] / max(row["nodes"], 1),
        "instantiate_s": row["instantiate_s"],
        "upload_s": row["upload_s"],
        "first_launch_s": first,
        "launch_s": later,
        "one_by_one_s": one_by_one,
        "sooner": row["capture_s"] / row["restore_s"],
        "graph_speedup": one_by_one / later,
        "stored_bytes": row["stored_bytes"],
        **{f"from_{kind}": row["sources"].get(kind, 0) for kind in ("image", "symbol", "module")},
    }
