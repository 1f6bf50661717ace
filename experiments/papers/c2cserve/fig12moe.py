"""TTFT of MoE models under a bursty trace (C2CServe, Fig. 12, MoE)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Final

import numpy as np
import pyarrow as pa

from c2c.ranges import AboveZero, Count
from experiments.claims import Result, answer, claim
from experiments.claims.robust import under_all
from experiments.figure import SIMULATOR, Computed, Context, figure
from experiments.papers.c2cserve.fig12 import Systems, bands, totals
from experiments.papers.c2cserve.public import served_ttft_s
from experiments.papers.c2cserve.replay import TRACES, describe, load_of_half, replay

__all__ = ["compute"]

HALF_BUSY: Final = "half busy"


@dataclass(frozen=True, slots=True, kw_only=True)
class Mixtures(Systems):
    """Experiment of Fig. 12 with mixtures; `seeds` have own tables of misses."""

    compressions: tuple[AboveZero, ...]
    seeds: Count


@figure("fig12moe", title="Fig. 12: trace replay, mixtures", experiment=Mixtures,
        draw=".drawing.mixtures.draw_fig12_moe", needs=SIMULATOR, traces=TRACES)  # fmt: skip
def compute(context: Context, experiment: Mixtures) -> Computed:
    """Return totals by system and seed, at two loads."""
    half = load_of_half(context, experiment.of(experiment.half_busy))
    loads = {f"{one:g} times the trace's speed": one for one in experiment.compressions}
    loads |= {HALF_BUSY: half}
    seeds = context.seeds[: experiment.seeds]
    runs = [(load, name, seed) for load in loads for name in experiment.shown for seed in seeds]
    rows: list[dict[str, Any]] = []
    for load, name, seed in context.each(runs):
        got = replay(context, loads[load], experiment.of(name), seed)
        rows.append(
            {
                "load": load,
                "compression": loads[load],
                "system": name,
                "seed": seed,
                "switches": got.stats.switches,
                **totals(got, experiment.windows),
            }
        )
    return Computed(
        tables={"totals": pa.Table.from_pylist(rows)},
        results=_results(context, rows, experiment, half),
        caption=(
            "Points: p50, p95 and p99 of TTFT in a trace replay of two mixtures, medians over "
            "seeds; lines: range over seeds. One GH200, link variant "
            f"'{context.link_variant}'."
        ),
        assumptions=(
            f"Half busy: {describe(replace(context, seeds=seeds), half)}.",
            *(f"{name}: {', '.join(experiment.of(name))}." for name in experiment.shown),
            "Requests ask for Qwen3-30B-A3B and Mixtral-8x7B in turn.",
            "The paper states neither load nor models nor layout.",
            "The half-busy load is the one at which the GPU of "
            f"{experiment.half_busy} would be busy half of the time.",
            "MoE-Infinity and FineMoE read the checkpoint anew at each switch (105 and 128 s in "
            "Fig. 11), so that no TTFT of several seconds is possible.",
        ),
        finding=_finding(rows, experiment),
        report=_report(rows, experiment.windows.target_s),
    )


def _middle(rows: Sequence[Mapping[str, Any]], load: str, system: str, column: str) -> float:
    return float(np.median([r[column] for r in rows if (r["load"], r["system"]) == (load, system)]))


def _finding(rows: Sequence[Mapping[str, Any]], experiment: Mixtures) -> str:
    p99 = {name: _middle(rows, HALF_BUSY, name, "ttft_p99_s") for name in experiment.shown}
    text = ", ".join(f"{value:.3g} s for {name}" for name, value in p99.items())
    return f"With mixtures p99 TTFT is {text}"


def _results(
    context: Context, rows: Sequence[Mapping[str, Any]], experiment: Mixtures, half: float
) -> tuple[Result, ...]:
    seeds = list(dict.fromkeys(r["seed"] for r in rows))
    systems = dict.fromkeys(r["system"] for r in rows)
    if "C2CServe" not in systems or len(systems) < 2:
        return ()

    def of(load: str, system: str, column: str, seed: int | None = None) -> float:
        chosen = [r for r in rows if seed is None or r["seed"] == seed]
        return _middle(chosen, load, system, column)

    def band(seed: int | None = None) -> list[float]:
        return [of(HALF_BUSY, "C2CServe", c, seed) for c in ("curve_p5_s", "curve_p95_s")]

    def peak(seed: int | None = None) -> float:
        return min(
            of(HALF_BUSY, name, "ttft_p99_s", seed) for name in systems if name != "C2CServe"
        )

    @cache
    def replayed(load: str) -> dict[str, list[float]]:
        compression = {"half_busy": half, "own_speed": 1.0, "twice": 2.0}[load]
        got = replay(context, compression, experiment.of("C2CServe"), seeds[0])
        return bands(*served_ttft_s(got), experiment.windows)

    remark = (
        "5th and 95th percentile of the windows' 95th percentiles; the load is set by "
        "ServerlessLLM's busy time, see the figure's assumptions."
    )
    least = f"The least p99 of {len(systems) - 1} baselines."

    def answers(statistic: str, load: str) -> Iterator[Result]:
        is_default = (statistic, load) == ("p95", "half_busy")
        for name, ours, note in (("c2cserve.ttft", band, remark), ("baselines_peak", peak, least)):
            yield answer(
                f"c2cserve.fig12.moe.{name}",
                ours if is_default else lambda: replayed(load)[statistic],
                note,
                link_variant=context.link_variant,
                by_seed=[ours(seed) for seed in seeds],
            )

    return under_all(answers, ("statistic", "load"), "c2cserve")


def _report(rows: Sequence[Mapping[str, Any]], target_s: float) -> tuple[tuple[str, ...], ...]:
    columns = ("ttft_p50_s", "ttft_p95_s", "ttft_p99_s", "tpot_p50_s", "within_target_percent",
               "busy_percent", "switches")  # fmt: skip
    low, high = claim("c2cserve.fig12.moe.c2cserve.ttft").value
    head = ("load", "system", f"TTFT p50 s (paper, C2CServe: {low} to {high})", "p95", "p99",
            "TPOT p50 s", f"within {target_s:g} s %", "busy %", "switches")  # fmt: skip
    return (
        head,
        *(
            (load, system, *(f"{_middle(rows, load, system, column):.3g}" for column in columns))
            for load, system in dict.fromkeys((r["load"], r["system"]) for r in rows)
        ),
    )
