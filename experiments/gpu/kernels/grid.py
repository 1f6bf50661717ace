"""Section `kernels`: hybrid_gemm by shape, rows, SMs, alpha and cluster, its rivals and its limits.

Clusters wider than the rows need are left out. The most informative cases come first: the paper's
shape on the whole GPU, Llama 8B, the paper's shape on slices, then all rows of both.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

from experiments.gpu import Case, Context, Row, Scale, time_launches
from experiments.gpu.kernels import bounds, launching, operands
from experiments.gpu.kernels.rivals import PIECES, RIVALS
from pallas_kernels.gemm import (
    CLUSTERS,
    MODEL_PROJECTIONS,
    ROWS,
    Gemm,
    assumed,
    choice,
    plan_launch,
    predict,
    smallest_cluster,
)

ALPHAS = (0.0, 0.25, 0.5, 0.75, 1.0)
SM_LIMITS = (132, 56, 28, 16)
ROW_ORDER = (10240, 512, 16, 2048, 64, 1, 4096, 128, 1024, 256, 8)
"""Rows from `ROWS`; first those at which dataflows differ most or models spend most time."""
FIG4, DENSE = "c2cserve-fig4", "llama-3.1-8b"
"""The paper's shape, and a model's."""
_TALLEST = 256  # largest number of rows of a CTA
QUICK = 40  # cases of a quick run


def cases(scale: Scale) -> list[Case]:
    """List the bounds, then the grid."""
    if scale == "tiny":
        shapes = [("tiny", 256, 128, m) for m in (8, 64)]
        specs = [
            spec
            for label, k, n, m in shapes
            for spec in cell(label, k, n, m, sm_limits=(4,), alphas=(0.0, 0.5, 1.0))
        ]
        return [*bounds.cases((4,)), *(_case(s) for s in specs)]
    listed: dict[str, Case] = {}
    for spec in ordered():
        case = _case(spec)
        listed.setdefault(case.key, case)
        if scale == "quick" and len(listed) == QUICK:
            break
    return [*bounds.cases(SM_LIMITS), *listed.values()]


def ordered() -> Iterator[dict[str, Any]]:
    """Yield the specs of the whole grid, the most informative first; some repeat."""
    fig4, dense = ([(model, k, n) for k, n in MODEL_PROJECTIONS[model]] for model in (FIG4, DENSE))
    whole, slices = SM_LIMITS[:1], SM_LIMITS[1:]
    for m in ROW_ORDER[:6]:
        for shape in fig4:
            yield from cell(*shape, m, sm_limits=whole, alphas=ALPHAS)
    for m in (10240, 512, 16):
        for shape in dense:
            yield from cell(*shape, m, sm_limits=whole, alphas=(1.0, 0.0))
    for m in (10240, 512, 16):
        for shape in fig4:
            yield from cell(*shape, m, sm_limits=slices, alphas=(1.0, 0.0, 0.5), rivals=False)
    for sm_limits in (whole, slices):
        for m in ROW_ORDER:
            for shape in (*fig4, *dense):
                yield from cell(
                    *shape, m, sm_limits=sm_limits, alphas=ALPHAS, rivals=sm_limits is whole
                )


def cell(
    shape: str,
    k: int,
    n: int,
    m: int,
    *,
    sm_limits: tuple[int, ...],
    alphas: tuple[float, ...],
    rivals: bool = True,
) -> Iterator[dict[str, Any]]:
    """Yield the specs of one GEMM, those that share a compiled kernel together."""
    size = {"shape": shape, "k": k, "n": n, "m": m}
    for cluster in useful_clusters(m):
        for sm_limit in sm_limits:
            for alpha in alphas:
                if cluster > sm_limit or (0 < alpha < 1 and 2 * cluster > sm_limit):
                    continue  # a path would be left without SMs
                yield {
                    "what": "hybrid",
                    **size,
                    "sm_limit": sm_limit,
                    "alpha": alpha,
                    "cluster": cluster,
                }
    if rivals:
        yield {"what": "automatic", **size}
        for name in RIVALS:
            yield {"what": name, **size}


def _case(spec: Mapping[str, Any]) -> Case:
    """Return a case; rivals do not read host memory in a kernel."""
    ours = spec["what"] in ("hybrid", "automatic")
    return Case(spec=spec, limit_s=90.0, host="either" if ours else "")


def useful_clusters(m: int) -> tuple[int, ...]:
    """Return cluster sizes up to the one that reads W once for all rows, widest first.

    Wider clusters would have CTAs without rows.
    """
    return tuple(c for c in reversed(CLUSTERS) if c <= smallest_cluster(m, _TALLEST))


def measure(spec: Mapping[str, Any], context: Context) -> list[Row]:
    """Measure one case."""
    what = spec["what"]
    if what == "bound":
        return bounds.measure(spec, context)
    m, k, n = spec["m"], spec["k"], spec["n"]
    amounts = {
        "weight_bytes": 2 * k * n,
        "activation_bytes": 2 * m * (k + n),
        "flops": 2.0 * m * k * n,
    }
    if what in RIVALS:
        launch = RIVALS[what](m, k, n, context)
        extra: Row = {"pieces": PIECES} if what == "staged_overlapped" else {}
    else:
        x = operands.activations(m, k, context)
        w = operands.weights(
            k, n, operands.copies(2 * k * n, context), context.weights, context.seed
        )
        if what == "automatic":
            gemm = Gemm(m=-(-m // 8) * 8, k=k, n=n, layers=w.shape[0])
            chosen = choice(gemm, launching.machine(context))
            config, alpha, sm_limit = chosen.config, chosen.alpha, None
            launch = launching.hybrid(
                x, w, context, alpha=alpha, cluster=config.cluster, config=config
            )
        else:
            given = {name: spec[name] for name in ("alpha", "sm_limit", "cluster")}
            launch = launching.hybrid(x, w, context, **given)
            alpha, sm_limit = spec["alpha"], spec["sm_limit"]
            gemm, config = launching.configuration(m, k, n, w.shape[0], spec["cluster"], context)
        extra = {"tm": config.tm, "tn": config.tn, "kc": config.kc}
        extra["config"] = json.dumps(asdict(config))
        if context.weights == "host":  # the only memory that predictions cover
            plan = plan_launch(gemm, config, alpha=alpha, sm_limit=sm_limit, layer=0)
            machine = launching.machine(context, config.cluster)
            extra["predicted_s"] = float(predict(gemm, config, plan, machine).time_s)
            extra["assumed_s"] = float(predict(gemm, config, plan, assumed(machine)).time_s)
    times = time_launches(launch, target_s=context.target_s, repetitions=context.repetitions)
    return [amounts | extra | times.columns()]


assert set(ROW_ORDER) == set(ROWS), "the rows that the tuner and the tests use"
