"""TTFT over time under a bursty trace, of C2CServe and others (C2CServe, Fig. 12, dense)."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

from c2c.config import SimulationResult
from experiments.c2cserve.replay import TRACES, busy_share, describe, fit_load, load_of_half, replay
from experiments.claims import Result, answer, claim
from experiments.figure import SIMULATOR, Computed, Context, figure

__all__ = ["TARGET_S", "compute", "totals"]

# For comparison, another rule for the load: ServerlessLLM's latency closest to the printed band.
BY_LATENCY = (2.0, 3.0, 4.0, 5.0, 6.0, 8.0)
PRINTED_RPS = 3.5e6 / (21 * 86_400)  # of GenTD26, section 9.1: requests in three weeks
WINDOW_S = 1800.0
LEAST_REQUESTS = 30  # of a window whose percentiles are drawn
TARGET_S = 1.0
SYSTEMS = {
    "C2CServe": ["catalog=dense6", "system=c2cserve", "mig=7x12gb"],
    "ServerlessLLM": ["catalog=dense6", "system=serverlessllm", "mig=1x96gb"],
    "Aegaeon": ["catalog=dense6", "system=aegaeon", "mig=1x96gb"],
    "C2CServe to the letter": ["catalog=dense6", "system=c2cserve_letter", "mig=7x12gb"],
    "plus": ["catalog=dense6", "system=c2cserve_plus", "mig=7x12gb"],
}
COMPARED = tuple(SYSTEMS)[:3]  # those of the paper
QUICK_SYSTEMS = (*COMPARED, "plus")  # the letter is a program of its own to compile


@figure("fig12", title="Fig. 12: trace replay, dense models", draw="serving.draw_fig12",
        needs=SIMULATOR, traces=TRACES)  # fmt: skip
def compute(context: Context) -> Computed:
    """Return TTFT per time window and seed, totals per seed, and the answers to the claims."""
    windows: list[dict[str, Any]] = []
    summary: list[dict[str, Any]] = []
    link_gbps = 0.0
    compression = load_of_half(context, SYSTEMS["ServerlessLLM"])
    names = QUICK_SYSTEMS if context.quick else tuple(SYSTEMS)
    runs = [(name, seed) for name in names for seed in context.seeds]
    for name, seed in context.each(runs):
        got = replay(context, compression, SYSTEMS[name], seed)
        windows += _windows(name, seed, got)
        summary.append({"system": name, "seed": seed, **totals(got)})
        link_gbps = got.stats.link_capacity_gbps
    caption = (
        "(a) Requests of the busiest 40 hours. (b) TTFT by window: median (line), range over seeds "
        "(dark) and p5 to p95 (light); dashed: our variants of C2CServe. GH200, "
        f"{context.link_text(link_gbps)}."
    )
    assumptions = (
        f"Load: {describe(context, compression)}.",
        "Catalog dense6 (three Llama-3 3B, three 8B) runs on one GH200.",
        "C2CServe runs on 7x12gb, ServerlessLLM and Aegaeon on the full GPU.",
        "'To the letter' (full profile) does what the paper says and nothing where the paper is "
        "silent; 'plus' is our system.",
        "The paper states no load; ours is the one at which ServerlessLLM's GPU would be half "
        "busy, by its busy time at the trace's own speed.",
        f"A window is {WINDOW_S / 60:g} minutes and is shown if it has at least {LEAST_REQUESTS} "
        "requests.",
        "Lines are the median over seeds of each window's median.",
        "Totals in the legend are of the whole run.",
    )
    return Computed(
        tables={"windows": pa.Table.from_pylist(windows), "summary": pa.Table.from_pylist(summary)},
        results=_results(summary, context),
        caption=caption,
        assumptions=assumptions,
        report=_report(context, compression, summary),
    )


def _report(
    context: Context, compression: float, summary: list[dict[str, Any]]
) -> tuple[tuple[str, ...], ...]:
    """Return a table of the systems under each rule for the load, with the first seed.

    The paper prints GenTD26's requests in three weeks, on 300 GPUs and more. All of them on one
    GH200 bound its load from above.
    """
    before = fit_load(
        context,
        BY_LATENCY,
        SYSTEMS["ServerlessLLM"],
        claim("c2cserve.fig12.dense.sllm.ttft").value,
        lambda got: [totals(got)[k] for k in ("ttft_p50_s", "ttft_p95_s")],
    )
    seed = context.seeds[0]
    now = [("half busy", compression, r) for r in summary if r["seed"] == seed]
    whole = float(f"{PRINTED_RPS / (now[0][2]['rate_rps'] / compression):.3g}")
    then = [
        (rule, load, {"system": name, **totals(replay(context, load, SYSTEMS[name], seed))})
        for rule, load in (("by ServerlessLLM's latency", before), ("the whole trace", whole))
        for name in COMPARED
    ]
    head = ("load", "compression", "system", "TTFT p50 s", "p95", "p99", "within 1 s %", "busy %")
    body = [
        (
            rule,
            f"{load:g}",
            str(r["system"]),
            *(f"{r[f'ttft_{p}_s']:.3g}" for p in ("p50", "p95", "p99")),
            f"{r['within_target_percent']:.1f}",
            f"{r['busy_percent']:.0f}",
        )
        for rule, load, r in (*now, *then)
    ]
    return (head, *body)


def _windows(name: str, seed: int, got: SimulationResult) -> list[dict[str, Any]]:
    arrival = got.requests["arrival_s"].to_numpy()
    ttft = got.requests["first_token_s"].to_numpy() - arrival
    served = np.asarray(got.requests["status"].to_pylist()) == "finished"
    window = (arrival // WINDOW_S).astype(int)
    rows = []
    for index in np.unique(window):
        chosen = ttft[(window == index) & served]
        if len(chosen):
            p5, p50, p95 = np.percentile(chosen, (5, 50, 95)).tolist()
            rows.append(
                {
                    "system": name,
                    "seed": seed,
                    "start_h": float(index * WINDOW_S / 3600),
                    "hours": WINDOW_S / 3600,
                    "requests": int(np.count_nonzero(window == index)),
                    "is_drawn": bool(np.count_nonzero(window == index) >= LEAST_REQUESTS),
                    "p5_s": p5,
                    "p50_s": p50,
                    "p95_s": p95,
                }
            )
    return rows


def totals(got: SimulationResult) -> dict[str, Any]:
    """Return latencies, attainment and busy time of a replay."""
    s = got.summary
    arrival = got.requests["arrival_s"].to_numpy()
    ttft = got.requests["first_token_s"].to_numpy() - arrival
    served = np.asarray(got.requests["status"].to_pylist()) == "finished"
    within = np.count_nonzero((ttft <= TARGET_S) & served)
    return {
        "requests": s["requests"],
        "rate_rps": s["requests"] / float(arrival.max()),
        "busy_percent": 100.0 * busy_share(got),
        "failed": s["failed"],
        **{f"ttft_{p}_s": s["ttft_s"][p] for p in ("p50", "p95", "p99")},
        **{f"tpot_{p}_s": s["tpot_s"][p] for p in ("p50", "p95", "p99")},
        **_curve(got),
        "within_target_percent": 100.0 * within / len(arrival),
        "attainment_both_percent": 100.0 * s["attainment"]["both"],
    }


def _curve(got: SimulationResult) -> dict[str, float]:
    """Return the band of the drawn curve: the 5th and 95th percentile of its windows' medians."""
    medians = [w["p50_s"] for w in _windows("", 0, got) if w["is_drawn"]] or [math.nan]
    low, high = np.percentile(medians, (5, 95)).tolist()
    return {"curve_p5_s": low, "curve_p95_s": high}


def _results(summary: list[dict[str, Any]], context: Context) -> tuple[Result, ...]:
    def middle(system: str, column: str) -> float:
        return float(np.median([r[column] for r in summary if r["system"] == system]))

    def band(system: str) -> list[float]:
        return [middle(system, "curve_p5_s"), middle(system, "curve_p95_s")]

    ours = (
        "5th and 95th percentile of the windows' medians, which the curve shows; the load is set "
        "by ServerlessLLM's busy time, see the figure's assumptions."
    )
    within = f"Share of requests with TTFT within {TARGET_S:g} s."
    both = "TTFT and TPOT targets of catalog dense6; the paper prints no TPOT target."
    answers: tuple[tuple[str, str, str, Callable[[str], Any]], ...] = (
        ("fig12.dense.c2cserve.ttft", "C2CServe", ours, band),
        ("fig12.dense.sllm.ttft", "ServerlessLLM", ours, band),
        ("fig12.dense.aegaeon.ttft", "Aegaeon", ours, band),
        ("fig12.attainment", "C2CServe", within,
         lambda s: middle(s, "within_target_percent")),
        ("abstract.slo_attainment", "C2CServe", both,
         lambda s: middle(s, "attainment_both_percent")),
    )  # fmt: skip
    return tuple(
        answer(f"c2cserve.{name}", of(system), note, link_variant=context.link_variant)
        for name, system, note, of in answers
    )
