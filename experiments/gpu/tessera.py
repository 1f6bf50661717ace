"""Section `tessera`: kernels of a step timed, recorded, and split over two contexts of one GPU.

XLA compiles steps of Llama 8B's layers on the machine, at three batch sizes. Cases compare seconds
of every kernel with the cost tables, recording code with the original, and a placement over two
contexts, in place of two GPUs, with one graph; others time streams with priorities. Questions that
need two GPUs are listed as unmeasured. Needs .venv-driver (`make driver`, can be copied) and a
driver. Compiled steps stay beside the results, so that a repeated case does not compile again.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from c2c.errors import DataError
from experiments.children import ROOT, answer_of
from experiments.gpu.cases import Case, Context, Row, Scale, Unmeasurable
from experiments.gpu.device import is_without_driver, with_bindings
from experiments.medusa import steps

FIXTURE = ROOT / "tests" / "systems" / "program" / "xla" / "decode"  # 60 launches, two rows
ROWS: Mapping[Scale, tuple[int, ...]] = {"full": (1, 8, 64), "quick": (8,), "tiny": (0,)}
PAGE_TOKENS = 64
# Layers of Llama 8B's shape; two, since kernels of a layer are the same in all.
LLAMA_8B: Mapping[str, int] = {
    "layers": 2, "context": 512, "hidden": 4096, "heads": 32, "kv_heads": 8, "head_dim": 128,
    "intermediate": 14336,
}  # fmt: skip
COPIES = 8  # of a step's memory: even those of the smallest matrix exceed any L2
# 0: as the planner places it
CUTS: Mapping[Scale, tuple[int, ...]] = {"full": (0, 1, 8, 32), "quick": (0, 8), "tiny": (0,)}
UNMEASURED: Mapping[str, str] = {
    "two kinds of GPU": "one GPU: the speed of kernels on another kind is not measured",
    "sends between GPUs": "one GPU: copies between two of its contexts cross no link",
    "sends between machines": "one machine: no RDMA",
    "overlap of two GPUs": "contexts of one GPU take turns, so they do not compute at once",
}


def cases(scale: Scale) -> list[Case]:
    """List the cases: times first, then equality, splits, priorities, unmeasured questions."""
    found = [_case("kernels", rows, 150.0) for rows in ROWS[scale]]
    one = 8 if 8 in ROWS[scale] else ROWS[scale][0]
    found.append(_case("recorded", one, 90.0))
    found += [
        _case("split", one, 60.0, cuts=cuts, apart=apart)
        for cuts in CUTS[scale]
        for apart in ("contexts", "streams")
    ]
    found.append(_case("priorities", one, 60.0))
    return [*found, *(Case(spec={"what": what}) for what in UNMEASURED)]


def _case(what: str, rows: int, limit_s: float, **more: int | str) -> Case:
    return Case(spec={"what": what, "rows": rows, **more}, limit_s=limit_s, least_s=20.0)


def measure(spec: Mapping[str, Any], context: Context) -> list[Row]:
    """Return a case's rows, which a process of its own measures."""
    if spec["what"] in UNMEASURED:
        raise Unmeasurable(UNMEASURED[spec["what"]])
    if context.folder:
        return _asked(spec, context, Path(context.folder))
    with tempfile.TemporaryDirectory() as folder:
        return _asked(spec, context, Path(folder))


def _asked(spec: Mapping[str, Any], context: Context, folder: Path) -> list[Row]:
    rows = spec["rows"]
    asked: dict[str, Any] = {"what": spec["what"], "repetitions": context.repetitions[0]}
    if rows:
        made = folder / "steps"
        made.mkdir(parents=True, exist_ok=True)
        steps.compile_steps(made, [rows], LLAMA_8B, steps.environment())
        trips = LLAMA_8B["context"] // PAGE_TOKENS
        asked |= {"step": str(made / str(rows)), "tokens": rows, "copies": COPIES, "trips": trips}
    else:
        asked |= {"step": str(FIXTURE), "tokens": 2, "seconds": 0.0}
    if spec["what"] == "split":
        asked |= {"cuts": spec["cuts"], "is_apart": spec["apart"] == "contexts"}
    line = [sys.executable, "-m", "experiments.tessera.on_gpu", json.dumps(asked)]

    def failed(why: str) -> Exception:
        return Unmeasurable(why) if is_without_driver(why) else DataError(spec["what"], why)

    found: list[Row] = answer_of(line, failed, env=with_bindings(), apart=False)
    return found
