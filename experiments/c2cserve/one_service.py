"""One hot model on all slices of one GH200 (beyond the paper)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from c2c.config import build, simulate
from experiments.c2cserve.measures import measures
from experiments.c2cserve.settings import GH200, composed
from experiments.claims import improvements_of
from experiments.figure import SIMULATOR, Computed, Context, figure

__all__ = ["TRACE", "compute"]

TRACE = "azure2023_conv.parquet"
# Without the public file: the same number of requests in an hour, by the generator.
REQUESTS, RATE_RPS = 19_366, 5.38
QUICK_REQUESTS = 8_000
MODELS = {"llama-3-8b": 0.3, "llama-3-3b": 0.15}  # TPOT targets in s; 1 s of TTFT for both
SETTINGS = (("llama-3-8b", "7x12gb"), ("llama-3-8b", "2x48gb"), ("llama-3-3b", "7x12gb"))
SYSTEMS = {
    "plus": "system=c2cserve_plus",
    "c2cserve": "system=c2cserve",
    "letter": "system=c2cserve_letter",
}
QUICK_SYSTEMS = ("plus", "c2cserve")  # the letter is a program of its own to compile


@figure("one_service", title="One service on all slices (beyond the paper)",
        draw="fleets.draw_one_service", needs=SIMULATOR, traces=(TRACE,))  # fmt: skip
def compute(context: Context) -> Computed:
    """Return latency, attainment and busy slices of every model, layout and system."""
    systems = QUICK_SYSTEMS if context.quick else tuple(SYSTEMS)
    # the public arrivals and lengths, and hence the results, are the same for every seed
    seeds = context.seeds[:1] if _has_trace(context) else context.seeds
    runs = [(*setting, name, seed) for setting in SETTINGS for name in systems for seed in seeds]
    rows: list[dict[str, Any]] = []
    link_gbps = 0.0
    for model, layout, name, seed in context.each(runs):
        setup = build(
            composed(
                [
                    *GH200,
                    f"mig={layout}",
                    "catalog=dense6",
                    f"catalog.models=[{{spec:{model},tpot_slo_s:{MODELS[model]}}}]",
                    *_source(context),
                    SYSTEMS[name],
                    f"link={context.link_variant}",
                ],
                {"seed": seed},
            )
        )
        got = simulate(setup)
        link_gbps = got.stats.link_capacity_gbps
        rows.append(
            {
                "setting": f"{model.removeprefix('llama-3-').upper()}, {layout}",
                "system": name,
                "seed": seed,
                "slices": len(setup.prepared.kind_of),
                "slices_used": int(np.count_nonzero(got.stats.busy_s)),
                **measures(got),
            }
        )
    caption = (
        "One Llama-3 model as a service on all slices of one GH200: TTFT (bar: p50, line: to p99) "
        "and share of requests within both targets; "
        f"{context.link_text(link_gbps)}."
    )
    assumptions = (
        f"Load: {_describe(context)}.",
        "Targets: TTFT 1 s, TPOT 0.3 s (8B) and 0.15 s (3B).",
        "plus starts an instance on another slice when prompts of half a second wait or the KV "
        "cache is full.",
        "c2cserve follows the same rule with the paper's smallest feasible chunk, so that a prompt "
        "reads the weights more often.",
        "The letter has one instance a model.",
    )
    return Computed(
        tables={"services": pa.Table.from_pylist(rows)},
        results=(),
        caption=caption, assumptions=assumptions,
        report=_report(rows),
        improvements=improvements_of(
            rows, [("plus", "c2cserve")],
            {"both_percent": ("both targets met", "%", "more"),
             "ttft_p99_s": ("p99 TTFT", "s", "less")},
            where=lambda r: f"one service, {r['setting']}",
        ),
    )  # fmt: skip


def _has_trace(context: Context) -> bool:
    return context.traces is not None and (context.traces / TRACE).is_file()


def _source(context: Context) -> tuple[str, ...]:
    first = QUICK_REQUESTS if context.quick else 0
    if context.traces is not None and _has_trace(context):
        return (
            "workload=azure2023",
            f"workload.path='{context.traces / TRACE}'",
            f"workload.max_requests={first}",
        )
    return (
        "workload=poisson",
        f"workload.requests={first or REQUESTS}",
        f"workload.rate_rps={RATE_RPS}",
    )


def _describe(context: Context) -> str:
    if _has_trace(context):
        what = "Azure's conversations of November 2023 with their own lengths"
    else:
        what = (
            f"Poisson arrivals at {RATE_RPS:g} requests/s with synthetic lengths (Azure's trace is "
            "not at hand)"
        )
    return f"{what}{f', the first {QUICK_REQUESTS:,} requests' if context.quick else ''}"


def _report(rows: list[dict[str, Any]]) -> tuple[tuple[str, ...], ...]:
    head = (
        "model, layout", "system", "TTFT p50 s", "p95", "p99", "TPOT p50 ms", "TTFT met %",
        "TPOT met %", "both met %", "busy slices", "link used %",
    )  # fmt: skip
    body = [
        (
            r["setting"],
            r["system"],
            *(f"{r[f'ttft_{p}_s']:.3g}" for p in ("p50", "p95", "p99")),
            f"{1e3 * r['tpot_p50_s']:.0f}",
            *(f"{r[f'{t}_percent']:.2f}" for t in ("ttft", "tpot", "both")),
            f"{r['slices_used']} of {r['slices']}",
            f"{r['link_percent']:.0f}",
        )
        for r in rows
    ]
    return (head, *body)
