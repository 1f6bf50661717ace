"""Burstiness and activity of the workload (C2CServe, Fig. 2): ours, and GenTD26 if available."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import pyarrow as pa

from c2c.ranges import AboveZero, Count
from c2c.workloads import TraceStatistics, build_workload, trace_statistics
from experiments.claims import Result, answer
from experiments.figure import Computed, Context, figure

__all__ = ["GENTD26", "compute"]

GENTD26 = "gentd26_requests.parquet"
REAL, SYNTHETIC = "GenTD26", "synthetic"
# Native speed; 25 rows name no model, and equal rows are requests (1 s resolution).
PUBLISHED: dict[str, Any] = {
    "kind": "trace",
    "path": GENTD26,
    "on_bad_row": "skip",
    "on_duplicate": "keep",
    "lengths": "fixed",
    "assignment": "popularity_rank",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Generated:
    """Experiment: size of the generator's trace."""

    requests: Count
    models: Count
    days: AboveZero


@figure("fig2", title="Fig. 2: workload", experiment=Generated, draw=".drawing.workload.draw_fig2",
        needs=("c2c.workloads",), traces=(GENTD26,))  # fmt: skip
def compute(context: Context, experiment: Generated) -> Computed:
    """Return hourly rates, active-hour shares and statistics by source."""
    seed = context.seeds[0]
    generator = {"kind": "synthetic", "lengths": "fixed", **asdict(experiment)}
    measures = {SYNTHETIC: _measure(generator, seed, experiment.models)}
    if context.traces and (context.traces / GENTD26).is_file():
        measures = {REAL: _measure(PUBLISHED, seed, experiment.models), **measures}
    results: list[Result] = []
    for source, statistics in measures.items():
        results += _results(source, statistics)
    real = (
        "GenTD26 is used as published (26,823 requests); it is of image generation, so only its "
        "arrivals and models are used."
        if REAL in measures
        else "The public GenTD26 file is not at hand."
    )
    caption = (
        "Left: hourly requests of the most popular models. Right: share of models that are active "
        "in at most so many hours, beside the paper's two numbers."
    )
    assumptions = (
        real,
        f"Synthetic: our generator with {experiment.requests:,} requests, {experiment.models} "
        f"models, {experiment.days:g} days, seed {seed}.",
        "The generator's curves are set to the published statistics, so they are in-sample.",
        "Active models have at least 10 requests.",
        "No link is involved.",
    )
    return Computed(
        tables=_tables(measures),
        results=tuple(results),
        caption=caption,
        finding=_finding(measures),
        assumptions=assumptions,
    )


def _finding(statistics: dict[str, TraceStatistics]) -> str:
    source, s = next(iter(statistics.items()))
    return (
        f"The median model of {source} is idle {100 * s.median_idle_share:.0f}% of the hours; "
        f"{100 * s.rare_hours_share:.0f}% of models are active in under a fifth"
    )


def _measure(settings: dict[str, Any], seed: int, models: int) -> TraceStatistics:
    names = [f"model {i + 1:02d}" for i in range(models)]
    workload = build_workload(settings, names, seed)
    return trace_statistics(workload.blocks(), workload.models)


def _tables(statistics: dict[str, TraceStatistics]) -> dict[str, pa.Table]:
    hourly: list[dict[str, Any]] = []
    active: list[dict[str, Any]] = []
    summary: list[dict[str, Any]] = []
    for source, s in statistics.items():
        for rank, series in enumerate(s.hourly):
            hourly += [
                {"source": source, "rank": rank + 1, "hour": h, "requests": int(n)}
                for h, n in enumerate(series)
            ]
        active += [
            {"source": source, "model": name, "requests": int(n), "active_hour_share": float(f)}
            for name, n, f in zip(s.models, s.requests_of, s.active_hour_fraction, strict=True)
            if n >= s.min_requests
        ]
        plain = s.summary()
        summary += [
            {"source": source, "quantity": k, "value": float(v)}
            for k, v in plain.items()
            if isinstance(v, int | float)
        ]
    return {
        "hourly": pa.Table.from_pylist(hourly),
        "active": pa.Table.from_pylist(active),
        "statistics": pa.Table.from_pylist(summary),
    }


def _results(source: str, s: TraceStatistics) -> list[Result]:
    real = source == REAL
    note = (
        "Measured on the public GenTD26 requests."
        if real
        else "Synthetic trace, whose curves were set to this statistic."
    )

    why = f"At least {s.min_requests} requests: the bound was chosen to give this number."

    def result(claim_id: str, ours: Any, *, chosen: bool = False) -> Result:
        return answer(
            f"c2cserve.trace.{claim_id}",
            ours,
            f"{note} {why}".strip() if chosen else note,
            sample="out-of-sample" if real and not chosen else "in-sample",
        )

    longtail = {"models_percent": 100 * s.rare_hours_share, "active_hours_below_percent": 20}
    return [
        result("median_idle", 100 * s.median_idle_share),
        result("longtail_models", longtail),
        result("models_fig2", s.active_models, chosen=True),
        result("duration", s.span_s / (7 * 86400)),
        result(
            "staggered_bursts",
            {"aggregate_cv": s.aggregate_hourly_cv, "per_model_cv": s.median_hourly_cv},
        ),
    ]
