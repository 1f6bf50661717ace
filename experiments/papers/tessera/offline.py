"""Throughput of five workloads on three pairs, and by price (Tessera, Fig. 6, Table III)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Annotated, Any, Final

import numpy as np
import pyarrow as pa

from c2c.cost.kernel_graph import Served
from c2c.ranges import BelowOne, Count, OneOf
from c2c.systems.tessera import WAYS, Way, load_pair, ways
from experiments.claims import Result, claim
from experiments.claims.robust import readings_table, under_readings
from experiments.figure import SYSTEMS, Computed, Context, figure
from experiments.papers.tessera.claim_results import answer
from experiments.papers.tessera.workloads import (
    LABELS,
    LENGTHS,
    PAIRS,
    PROMPTS,
    SAID,
    WORKLOADS,
    workload,
)

__all__ = ["TABLE3", "Offline", "compute", "published_for_price"]

TABLE3: Final = {
    "left": "homo_left", "right": "homo_right", "prefill_decode": "pd", "attention_ffn": "af",
    "kernels": "tessera",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Offline:
    """Experiment of Fig. 6; see `conf/experiment/tessera/fig6.yaml`."""

    pairs: tuple[str, ...]
    workloads: tuple[Annotated[str, OneOf(*WORKLOADS)], ...]
    batch: Annotated[int, OneOf(*PROMPTS)]
    lengths: Annotated[str, OneOf(*LENGTHS)]
    gap: BelowOne
    blocks: Count | None


@figure("tessera.fig6", title="Tessera, Fig. 6, Table III: offline throughput",
        experiment=Offline, draw=".drawing.draw_offline", needs=SYSTEMS)  # fmt: skip
def compute(context: Context, experiment: Offline) -> Computed:
    """Return requests a second by pair, workload, method, and means by price."""
    rows, means = _rows_and_means(context, experiment)

    def answers(**reading: Any) -> tuple[Result, ...]:
        quiet = replace(context, progress=None)
        return _results(*_rows_and_means(quiet, experiment, **reading))

    is_whole = set(experiment.pairs) >= set(PAIRS) and set(experiment.workloads) == set(WORKLOADS)
    results = (
        under_readings(_results(rows, means), answers, SAID, everything=not context.quick)
        if is_whole
        else ()
    )
    mean = {
        way: float(np.mean([m["relative"] for m in means if m["way"] == way]))
        for way in ("kernels", "replicas", "limit")
    }
    best = max(r["gap"] for r in rows if r["gap"] is not None)
    caption = (
        "Bars: offline requests/s relative to the left GPU alone; crosses: the method does not "
        "apply. Last panel: means for the price; diamonds: Table III. Light grey: upper limit of "
        "all placements."
    )
    assumptions = (
        "Two GPUs apart need no link.",
        "Two GPUs apart and layers apart are no columns of the paper.",
        "The diamond of two GPUs apart is arithmetic on Table III, whose other values are "
        "measured.",
        "The right GPU's throughput alone is fitted (in-sample).",
        "Stages overlap in full.",
        f"Plans are at most {best:.0%} from the best.",
    )
    return Computed(
        tables={
            "cells": pa.Table.from_pylist(rows),
            "means": pa.Table.from_pylist(means),
            "readings": readings_table(results),
        },
        results=results,
        finding=(
            f"Tessera serves {mean['kernels']:.2f} times the left GPU alone in the mean, two GPUs "
            f"apart {mean['replicas']:.2f}; no placement can pass {mean['limit']:.2f}"
        ),
        caption=caption,
        assumptions=assumptions,
        report=_report(rows),
    )


def _rows_and_means(
    context: Context, experiment: Offline, **reading: Any
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    cells = [(pair, name) for pair in experiment.pairs for name in experiment.workloads]
    rows = []
    for pair, name in context.each(cells):
        rows += _cell(experiment, pair, name, **reading)
    return rows, [_mean(rows, pair, way) for pair in experiment.pairs for way in WAYS]


_pair: Final = cache(load_pair)


@cache
def published_for_price(pair: str, way: str) -> float | None:
    """Return Table III's throughput by price; replicas' is from its columns."""
    if pair not in PAIRS:
        return None
    left, right = (side.gpu for side in _pair(pair).gpus)
    if way == "replicas":
        a, b = left.price or 0.0, right.price or 0.0
        alone = float(claim(f"tessera.table3.{pair}.homo_right").value)
        return (a + alone * b) / (a + b)
    column = TABLE3.get(way)
    return None if column is None else float(claim(f"tessera.table3.{pair}.{column}").value)


def _cell(experiment: Offline, pair: str, model: str, **reading: Any) -> list[dict[str, Any]]:
    usual = {"batch": experiment.batch, "lengths": experiment.lengths}
    served = workload(model, **(usual | reading))
    blocks = None if served == workload(model, **usual) else experiment.blocks
    results = _ways(pair, served, experiment.gap, blocks)
    base = results[0]
    assert base.requests_per_s, f"{model} does not fit {base.detail}"
    assert base.efficiency, f"{base.detail} has no price"
    return [
        {
            "pair": pair,
            "workload": model,
            "way": way.name,
            "requests_per_s": way.requests_per_s,
            "relative": way.requests_per_s / base.requests_per_s,
            "for_price": (way.efficiency or 0.0) / base.efficiency,
            "applies": way.is_applicable,
            "gap": way.plan.gap if way.plan else None,
        }
        for way in results
    ]


@cache  # images have no batch or lengths of text, and are alike under all readings
def _ways(name: str, served: Served, gap: float, blocks: int | None) -> tuple[Way, ...]:
    pair = _pair(name)
    return ways(
        served, pair.gpus, gbps=pair.wire.gbps, latency_s=pair.wire.latency_s, gap=gap,
        blocks=blocks,
    )  # fmt: skip


def _of(rows: Sequence[Mapping[str, Any]], pair: str, way: str) -> dict[str, float]:
    return {
        r["workload"]: r["relative"]
        for r in rows
        if r["pair"] == pair and r["way"] == way and r["applies"]
    }


def _mean(rows: Sequence[Mapping[str, Any]], pair: str, way: str) -> dict[str, Any]:
    matches = [r for r in rows if r["pair"] == pair and r["way"] == way and r["applies"]]
    return {
        "pair": pair,
        "way": way,
        "relative": float(np.mean([r["relative"] for r in matches])),
        "for_price": float(np.mean([r["for_price"] for r in matches])),
        "published_for_price": published_for_price(pair, way),
    }


def _results(
    rows: Sequence[Mapping[str, Any]], means: Sequence[Mapping[str, Any]]
) -> tuple[Result, ...]:
    cost = {(m["pair"], m["way"]): m["for_price"] for m in means}
    rate = {(m["pair"], m["way"]): m["relative"] for m in means}
    gains = {
        base: [
            ours / _of(rows, pair, way)[name]
            for pair in PAIRS
            for name, ours in _of(rows, pair, "kernels").items()
            if name in _of(rows, pair, way)
        ]
        for base, way in (("pd", "prefill_decode"), ("af", "attention_ffn"))
    }
    dear = {
        base: [cost[pair, "kernels"] / cost[pair, way] for pair in PAIRS]
        for base, way in (("pd", "prefill_decode"), ("af", "attention_ffn"))
    }
    ahead = {"tessera": all(g > 1 for values in gains.values() for g in values)}
    cheaper = {"tessera": all(g > 1 for values in dear.values() for g in values)}
    over = rate["h100_rtx", "kernels"] / 2
    anchor = _anchor(means)
    fitted = "The fit: one number a pair, so that this is as printed."
    table: list[Result] = []
    for pair in PAIRS:
        for way, column in TABLE3.items():
            sample = {"left": "identity", "right": "in-sample"}.get(way, "out-of-sample")
            note = {"left": "", "right": fitted}.get(way, anchor[pair])
            table.append(answer(f"table3.{pair}.{column}", cost[pair, way], note, sample))  # type: ignore[arg-type]
    return (
        *table,
        *(
            answer(f"fig6.vs_{base}_{how}", reducer(gains[base]))
            for base in gains
            for how, reducer in (("avg", _average), ("max", max))
        ),
        *(
            answer(f"table3.vs_{base}_{how}", reducer(dear[base]))
            for base in dear
            for how, reducer in (("avg", _average), ("max", max))
        ),
        answer("fig6.always_best", ahead),
        answer("sec5b.always_highest", cheaper, "Among disaggregation; replicas stand apart."),
        answer("sec5b.h100_rtx_cost", cost["h100_rtx", "kernels"]),
        answer("sec5b.h100_rtx_throughput", rate["h100_rtx", "kernels"],
               "No placement can pass the limit, the sum of what both GPUs can do."),
        answer("abstract.throughput_max", max(gains["pd"])),
        answer("abstract.cost_max", max(dear["pd"])),
        answer("abstract.beats_homogeneous", {"hetero_pair": over > 1},
               "H100 + RTX Pro 6000 over two H100."),
        answer("setup.pd_inapplicable", _applies(rows, "prefill_decode", ("SD",)),
               "By what the kernels of the workloads are.", "identity"),
        answer("setup.af_inapplicable", _applies(rows, "attention_ffn", ("Mamba", "SD")),
               "By what the kernels of the workloads are.", "identity"),
    )  # fmt: skip


def _average(values: Sequence[float]) -> float:
    return float(np.mean(values))


def _anchor(means: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    return {
        m["pair"]: f"Two GPUs apart: {m['for_price']:.2f}, by the paper's own columns "
        f"{m['published_for_price']:.2f}."
        for m in means
        if m["way"] == "replicas"
    }


def _applies(rows: Sequence[Mapping[str, Any]], way: str, named: Sequence[str]) -> dict[str, bool]:
    workload_of = {"SD": "sd3.5-medium", "Mamba": "mamba-codestral-7b"}
    verdict_of = {r["workload"]: r["applies"] for r in rows if r["way"] == way}
    others = [name for name in WORKLOADS if name not in {workload_of[n] for n in named}]
    return {
        **{n: verdict_of[workload_of[n]] for n in named},
        "others": all(verdict_of[name] for name in others),
    }


def _report(rows: Sequence[Mapping[str, Any]]) -> tuple[tuple[str, ...], ...]:
    heads = ("right", "replicas", "PP", "PD", "AF", "Tessera", "limit")
    lines: list[tuple[str, ...]] = [("pair", "workload", *heads)]
    for pair, name in dict.fromkeys((r["pair"], r["workload"]) for r in rows):
        cell = {r["way"]: r for r in rows if (r["pair"], r["workload"]) == (pair, name)}
        lines.append(
            (
                LABELS.get(pair, pair),
                LABELS[name],
                *(
                    f"{cell[way]['relative']:.2f} ({cell[way]['for_price']:.2f})"
                    if cell[way]["applies"]
                    else "-"
                    for way in WAYS[1:]
                ),
            )
        )
    return tuple(lines)
