"""Section `tune`: the tuner's candidates for shapes of models, each checked before it is timed.

A row a candidate. The tuner's own file, `tune/tuned/<device>.json`, is what `hybrid_gemm` reads
once it lies in `pallas_kernels/tuned/`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from experiments.gpu import Case, Context, Row, Scale
from experiments.gpu.cases import Unmeasurable
from pallas_kernels import tuned_results
from pallas_kernels.gemm import MODEL_PROJECTIONS, Gemm, machine_for, present_machine
from pallas_kernels.gemm.heuristics import OP, tuning_key
from pallas_kernels.tuning import tune

ROWS = (16, 512, 2048, 64, 10240, 1)
MODELS = ("c2cserve-fig4", "llama-3.1-8b")
TOP: Mapping[Scale, int] = {"full": 8, "quick": 4, "tiny": 2}
REPEATS: Mapping[Scale, int] = {"full": 7, "quick": 5, "tiny": 1}
LIMIT_S = 120.0


def cases(scale: Scale) -> list[Case]:
    """List the problems: the paper's shape and a model's, at the rows that differ most."""
    if scale == "tiny":
        return [Case(spec={"k": 256, "n": 128, "m": 8})]
    shapes = dict.fromkeys(shape for model in MODELS for shape in MODEL_PROJECTIONS[model])
    specs = [{"k": k, "n": n, "m": m} for m in ROWS for k, n in shapes]
    chosen = [s for s in specs if (s["k"], s["n"]) == next(iter(shapes))][:4]
    return [
        Case(spec=spec, limit_s=LIMIT_S, least_s=15.0)
        for spec in (chosen if scale == "quick" else specs)
    ]


def measure(spec: Mapping[str, Any], context: Context) -> list[Row]:
    """Tune one problem.

    Raises:
      RuntimeError: a candidate is wrong or none works.
    """
    if not context.folder:
        raise Unmeasurable("no folder for the tuner's file")
    gemm = Gemm(m=-(-spec["m"] // 8) * 8, k=spec["k"], n=spec["n"])
    if context.backend == "sm90":
        machine = present_machine(measured=False)
    else:
        machine = machine_for("cpu", sm_count=4, measured=False)
    done = tune(
        [gemm],
        machine=machine,
        backend=context.backend,
        folder=Path(context.folder) / "tune" / "tuned",
        top=TOP[context.scale],
        repeats=REPEATS[context.scale],
        seed=context.seed,
    )
    key = tuning_key(gemm, machine.sm_count)
    entries = [
        entry
        for entry in tuned_results.read(done.path).entries
        if entry.op == OP and dict(entry.key) == key
    ]
    results = [result for entry in entries for result in entry.measurements]
    rows: list[Row] = [
        {
            "alpha": result.alpha,
            "config": json.dumps(dict(result.config)),
            "time_s": result.time_s,
            "spread": result.spread,
            "repetitions": result.repeats,
            "weight_bytes": 2 * gemm.k * gemm.n,
            "flops": 2.0 * gemm.m * gemm.k * gemm.n,
        }
        for result in results
        if result.time_s is not None
    ]
    bad = [f"alpha {r.alpha:.3g}, {dict(r.config)}: {r.error}" for r in results if r.error]
    if bad:
        raise RuntimeError(f"{len(bad)} of {len(results)} candidates failed: {'; '.join(bad)}")
    return sorted(rows, key=lambda row: float(row["time_s"]))
