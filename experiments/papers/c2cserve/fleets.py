"""More models than slices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from c2c.ranges import AboveZero, Count, Index
from experiments.claims import Improvement, improvements_of
from experiments.experiment import named
from experiments.figure import SIMULATOR, Computed, Context, figure
from experiments.papers.c2cserve.measures import measures, medians
from experiments.papers.c2cserve.replay import TRACES, describe, replay
from experiments.papers.c2cserve.settings import catalog

__all__ = ["Fleets", "compute"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleets:
    """Experiment: systems by name, loads, and numbers of models."""

    systems: dict[str, tuple[str, ...]]
    shown: tuple[str, ...]
    drawn: tuple[str, ...]
    compressions: tuple[AboveZero, ...]
    models: tuple[Count, ...]
    catalogs: dict[str, Index]
    seeds: Count
    max_requests: Count | None

    def __post_init__(self) -> None:
        for field in ("shown", "drawn"):
            for name in getattr(self, field):
                named(self.systems, name, "systems")

    def points(self) -> list[tuple[int, tuple[str, ...]]]:
        """Return each number of models with its catalog's settings."""
        catalogs = [(n, (f"catalog={name}",)) for name, n in self.catalogs.items() if n]
        return [(n, catalog(n)) for n in self.models] + catalogs

    @property
    def part(self) -> tuple[str, ...]:
        """Settings that bound a run's requests."""
        return () if self.max_requests is None else (f"workload.max_requests={self.max_requests}",)


@figure("fleets", title="More models than slices", experiment=Fleets,
        draw=".drawing.fleets.draw_fleets", needs=SIMULATOR,
        traces=TRACES, beyond=True)  # fmt: skip
def compute(context: Context, experiment: Fleets) -> Computed:
    """Return latency, attainment and switches by system and point."""
    seeds = context.seeds[: experiment.seeds]
    runs = [
        (compression, models, chosen, name, seed)
        for compression in experiment.compressions
        for models, chosen in experiment.points()
        for name in experiment.shown
        for seed in seeds
    ]
    rows: list[dict[str, Any]] = []
    link_gbps = 0.0
    for compression, models, chosen, name, seed in context.each(runs):
        settings = (*chosen, *experiment.part, *experiment.systems[name])
        got = replay(context, compression, settings, seed)
        link_gbps = got.stats.link_capacity_gbps
        rows.append(
            {
                "compression": compression,
                "models": models,
                "system": name,
                "is_drawn": name in experiment.drawn and compression == experiment.compressions[-1],
                "seed": seed,
                **measures(got),
            }
        )
    middle = medians(rows, ("compression", "models", "is_drawn", "system"))
    first = "" if experiment.max_requests is None else f", {experiment.max_requests:,} requests"
    return Computed(
        tables={"systems": pa.Table.from_pylist(middle), "by_seed": pa.Table.from_pylist(rows)},
        results=(),
        caption=(
            "Requests that miss their target of TTFT or TPOT, by the number of models on one "
            f"GH200; {context.link_text(link_gbps)}."
        ),
        finding=_finding(middle, experiment),
        assumptions=(
            f"Load: {describe(replace(context, seeds=seeds), *experiment.compressions)}{first}; "
            "values are medians over seeds.",
            "Half of the models are Llama-3 3B (TPOT target 0.15 s), half are 8B (0.3 s); the TTFT "
            "target is 1 s.",
            *(f"{name}: {', '.join(experiment.systems[name])}." for name in experiment.shown),
            "ServerlessLLM copies weights into HBM and pays its published start of 1.66 s; with "
            "our start it pays 50 ms, as C2CServe does.",
        ),
        report=_report(middle),
        improvements=_improvements(rows, experiment),
    )


def _finding(rows: Sequence[Mapping[str, Any]], experiment: Fleets) -> str:
    drawn = [r for r in rows if r["is_drawn"]]
    sizes = sorted({r["models"] for r in drawn})
    models = next((n for n in sizes if n >= 16), sizes[-1])
    parts = [
        f"{100.0 - r['both_percent']:.2g}% with {name}"
        for name in experiment.drawn
        for r in drawn
        if (r["models"], r["system"]) == (models, name)
    ]
    return f"{models} models on one GH200, requests off target: {', '.join(parts)}"


def _improvements(rows: Sequence[dict[str, Any]], experiment: Fleets) -> tuple[Improvement, ...]:
    first, *others = (name for name in experiment.drawn if name in experiment.shown)
    return improvements_of(
        rows,
        [(first, base) for base in others],
        {"both_percent": ("both targets met", "%", "more"),
         "ttft_p99_s": ("p99 TTFT", "s", "less"), "tpot_p50_s": ("median TPOT", "s", "less")},
        where=lambda r: f"{r['models']} models, compression {r['compression']:g}",
    )  # fmt: skip


def _report(rows: Sequence[Mapping[str, Any]]) -> tuple[tuple[str, ...], ...]:
    head = (
        "models", "compression", "system", "TTFT p50 s", "p95", "p99", "TPOT p50 ms",
        "TTFT met %", "TPOT met %", "both met %", "worst model %", "switches",
    )  # fmt: skip
    body = [
        (
            f"{r['models']}",
            f"{r['compression']:g}",
            r["system"],
            *(f"{r[f'ttft_{p}_s']:.3g}" for p in ("p50", "p95", "p99")),
            f"{1e3 * r['tpot_p50_s']:.0f}",
            *(f"{r[f'{t}_percent']:.2f}" for t in ("ttft", "tpot", "both")),
            f"{r['worst_percent']:.1f}",
            f"{r['switches']:,.0f}",
        )
        for r in rows
    ]
    return (head, *body)
