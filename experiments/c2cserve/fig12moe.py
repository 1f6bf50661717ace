"""TTFT of MoE models under a bursty trace, of C2CServe and others (C2CServe, Fig. 12, MoE)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
import pyarrow as pa

from experiments.c2cserve.fig12 import TARGET_S, totals
from experiments.c2cserve.replay import TRACES, describe, load_of_half, replay
from experiments.claims import Result, answer, claim
from experiments.figure import SIMULATOR, Computed, Context, figure

__all__ = ["SYSTEMS", "compute"]

REQUESTS: Final = 600
SEEDS: Final = 2  # few, as each computes its own tables of misses
CATALOG: Final = ("catalog=moe", f"workload.max_requests={REQUESTS}")
CACHING: Final = ("system.expert_cache.misses=table",)  # computed exactly on a few requests
# Two models: C2CServe has a slice for each, the others the layouts of their papers.
SYSTEMS: Final[Mapping[str, Sequence[str]]] = {
    "C2CServe": (*CATALOG, "system=c2cserve", "mig=2x48gb"),
    "ServerlessLLM": (*CATALOG, "system=serverlessllm", "mig=1x96gb"),
    "MoE-Infinity": (*CATALOG, *CACHING, "system=moe_infinity", "mig=1x96gb"),
    "FineMoE": (*CATALOG, *CACHING, "system=finemoe", "mig=1x96gb"),
}
BASELINES: Final = tuple(SYSTEMS)[1:]
QUICK_SYSTEMS: Final = tuple(SYSTEMS)[:2]  # programs that other figures compile too


@figure("fig12moe", title="Fig. 12: trace replay, mixtures", draw="mixtures.draw_fig12_moe",
        needs=SIMULATOR, traces=TRACES)  # fmt: skip
def compute(context: Context) -> Computed:
    """Return totals by system and seed, at the load of the dense models' rule and the trace's."""
    half = load_of_half(context, SYSTEMS["ServerlessLLM"])
    loads = {"the trace's own speed": 1.0, "half busy": half}
    names = QUICK_SYSTEMS if context.quick else tuple(SYSTEMS)
    seeds = context.seeds[:SEEDS]
    runs = [(load, name, seed) for load in loads for name in names for seed in seeds]
    rows: list[dict[str, Any]] = []
    for load, name, seed in context.each(runs):
        got = replay(context, loads[load], SYSTEMS[name], seed)
        rows.append(
            {
                "load": load,
                "compression": loads[load],
                "system": name,
                "seed": seed,
                "switches": got.stats.switches,
                **totals(got),
            }
        )
    return Computed(
        tables={"totals": pa.Table.from_pylist(rows)},
        results=_results(context, rows),
        caption=(
            "Points: p50, p95 and p99 of TTFT in a trace replay of two mixtures, medians over "
            "seeds; lines: range over seeds. One GH200, link variant "
            f"'{context.link_variant}'."
        ),
        assumptions=(
            f"Half busy: {describe(replace(context, seeds=seeds), half)}.",
            f"The trace's own speed: the same {REQUESTS:,} first requests without compression.",
            "Requests ask for Qwen3-30B-A3B and Mixtral-8x7B in turn.",
            "C2CServe runs on 2x48gb, the others on the full GPU.",
            "The paper states neither load nor models nor layout.",
            "The half-busy load is the one at which ServerlessLLM's GPU would be busy half of the "
            "time.",
            "MoE-Infinity and FineMoE read the checkpoint anew at each switch (105 and 128 s in "
            "Fig. 11), so that no TTFT of several seconds is possible.",
        ),
        report=_report(rows),
    )


def _middle(rows: Sequence[Mapping[str, Any]], load: str, system: str, column: str) -> float:
    return float(np.median([r[column] for r in rows if (r["load"], r["system"]) == (load, system)]))


def _results(context: Context, rows: Sequence[Mapping[str, Any]]) -> tuple[Result, ...]:
    seeds = list(dict.fromkeys(r["seed"] for r in rows))

    def of(load: str, system: str, column: str, seed: int | None = None) -> float:
        chosen = [r for r in rows if seed is None or r["seed"] == seed]
        return _middle(chosen, load, system, column)

    def band(seed: int | None = None) -> list[float]:
        return [of("half busy", "C2CServe", c, seed) for c in ("curve_p5_s", "curve_p95_s")]

    def peak(seed: int | None = None) -> float:
        return min(
            of("half busy", name, "ttft_p99_s", seed)
            for name in BASELINES
            if any(r["system"] == name for r in rows)
        )

    said = (
        "5th and 95th percentile of the windows' medians; the load is set by ServerlessLLM's busy "
        "time, see the figure's assumptions."
    )
    least = f"The least p99 of {len({r['system'] for r in rows}) - 1} baselines."
    return tuple(
        answer(
            f"c2cserve.fig12.moe.{name}",
            ours(),
            note,
            link_variant=context.link_variant,
            by_seed=[ours(seed) for seed in seeds],
        )
        for name, ours, note in (("c2cserve.ttft", band, said), ("baselines_peak", peak, least))
    )


def _report(rows: Sequence[Mapping[str, Any]]) -> tuple[tuple[str, ...], ...]:
    columns = ("ttft_p50_s", "ttft_p95_s", "ttft_p99_s", "tpot_p50_s", "within_target_percent",
               "busy_percent", "switches")  # fmt: skip
    low, high = claim("c2cserve.fig12.moe.c2cserve.ttft").value
    head = ("load", "system", f"TTFT p50 s (paper, C2CServe: {low} to {high})", "p95", "p99",
            "TPOT p50 s", f"within {TARGET_S:g} s %", "busy %", "switches")  # fmt: skip
    return (
        head,
        *(
            (load, system, *(f"{_middle(rows, load, system, column):.3g}" for column in columns))
            for load, system in dict.fromkeys((r["load"], r["system"]) for r in rows)
        ),
    )
