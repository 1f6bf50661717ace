"""Fig. 6: throughput and latency by copied layers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any

import pyarrow as pa

from c2c.ranges import Count, Index
from experiments.claims import Result, answer
from experiments.claims.robust import readings_table, under_readings
from experiments.figure import SIMULATOR, Computed, Context, figure
from experiments.papers.cocoserve.baselines import SAID, under
from experiments.papers.cocoserve.batch_server import (
    ANSWER_TOKENS,
    Drained,
    Served,
    drained,
    mean_over,
)

__all__ = ["Copies", "compute"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Copies:
    """Experiment: server, layers with two copies, copies of layers, loads."""

    server: Served
    layers: tuple[Index, ...]
    copies: tuple[Count, ...]
    copied_layers: Count
    low: tuple[Count, Count]
    peak: Count


@figure("cocoserve.fig6", title="CoCoServe, Fig. 6: copies of layers", experiment=Copies,
        draw=".drawing.draw_gains", needs=SIMULATOR)  # fmt: skip
def compute(context: Context, experiment: Copies) -> Computed:
    """Return gains over the unscaled server at peak and low load."""
    rows = list(_rows(experiment, context))

    def answers(**reading: Any) -> Iterator[Result]:
        other = replace(experiment, server=under(experiment.server, reading)[0])
        return _results(_rows(other, replace(context, progress=None)))

    results = under_readings(_results(rows), answers, SAID, everything=not context.quick)
    return Computed(
        tables={"gains": pa.Table.from_pylist(rows), "readings": readings_table(results)},
        results=results,
        finding=_finding(rows),
        caption=(
            "Lines: gain of throughput and cut of latency by copied layers, at low load and at "
            f"{experiment.peak} requests at once. Diamonds: the paper at its peak."
        ),
        assumptions=(
            f"The model is {experiment.server.model} on A100 of 40 GB over PCIe.",
            f"Prompts have {experiment.server.prompt_tokens} tokens, answers {ANSWER_TOKENS}, and "
            "batches are static.",
            "A rate of r is read as r requests at once.",
            "Low load is the mean over {} to {} requests, the peak is {} requests.".format(
                *experiment.low, experiment.peak
            ),
            f"The batch of {experiment.server.batch} grows by the memory that copies free on the "
            "first card.",
            "Copies take even shares of a batch.",
            "The host's time a step is fitted to the baseline's 20 s (in-sample), and nothing "
            "else is.",
            "readings.yaml lists the readings of all that the paper leaves open.",
            "Devices are simulated at the datasheet's rates.",
        ),
    )


def _finding(rows: list[dict[str, Any]]) -> str:
    peak = [r for r in rows if r["load"] == "peak"]
    most = max((r for r in peak if r["copies"] <= 2), key=lambda r: r["layers"])
    return (
        f"Two copies of {most['layers']} layers change throughput at the peak by "
        f"{most['throughput_gain_percent']:+.0f} % and latency by "
        f"{-most['latency_cut_percent']:+.0f} %"
    )


def _rows(experiment: Copies, context: Context) -> Iterator[dict[str, Any]]:
    cases = [(n, 2 if n else 1) for n in experiment.layers]
    cases += [(experiment.copied_layers, c) for c in experiment.copies if c > 2]
    done = 0
    for load in ("low", "peak"):
        before: Drained | None = None
        for layers, copies in cases:
            run = _served(experiment, layers, copies, load)
            before = before or run
            done += 1
            if context.progress:
                context.progress(done, 2 * len(cases))
            yield {
                "load": load, "layers": layers, "copies": copies,
                "throughput_rps": run.throughput_rps, "latency_s": run.latency_s,
                "throughput_gain_percent": 100 * (run.throughput_rps / before.throughput_rps - 1),
                "latency_cut_percent": 100 * (1 - run.latency_s / before.latency_s),
            }  # fmt: skip


def _served(experiment: Copies, layers: int, copies: int, load: str) -> Drained:
    served = replace(experiment.server, layers=layers, copies=max(2, copies))
    if load == "peak":
        return drained(served, experiment.peak)
    return mean_over(served, experiment.low)


def _results(rows: Iterable[dict[str, Any]]) -> Iterator[Result]:
    row_of = {(r["load"], r["layers"], r["copies"]): r for r in rows}

    def gain(load: str, layers: int, copies: int = 2) -> float:
        return float(row_of[load, layers, copies]["throughput_gain_percent"])

    def cut(load: str, layers: int, copies: int = 2) -> float:
        return float(row_of[load, layers, copies]["latency_cut_percent"])

    def mean(value: Callable[[str, int], float], layers: int) -> float:
        return (value("low", layers) + value("peak", layers)) / 2

    def trends() -> dict[str, bool]:
        by_layers = [gain("peak", n) for n in (15, 20, 25, 30)]
        by_copies = {load: [0.0, *(gain(load, 20, c) for c in (2, 3, 4))]
                     for load in ("low", "peak")}  # fmt: skip
        return {
            "layers": _rises(by_layers) and _is_convex(by_layers),
            "dop": all(map(_rises, by_copies.values())) and _is_concave(by_copies["peak"]),
        }

    peak = "Requests at once, the peak."
    both = "The load is not printed: the mean over low rates and the peak."
    answers: tuple[tuple[str, Callable[[], Any], str], ...] = (
        *((f"fig6a.rep{n}", partial(gain, "peak", n), peak) for n in (20, 25, 30)),
        ("fig6.rep25_second", lambda: gain("peak", 25), "The paper's second number of 25 layers."),
        ("fig6a.rep30_ratio", lambda: 1 + gain("peak", 30) / 100, peak),
        ("fig6b.baseline_latency", lambda: row_of["peak", 0, 1]["latency_s"], "Fitted."),
        ("fig6b.rep30_latency",
         lambda: max(row_of[load, 30, 2]["latency_s"] for load in ("low", "peak")),
         "The worse of low load and peak."),
        ("fig6b.rep30_avg", lambda: mean(cut, 30), both),
        ("fig6.rep15_throughput", lambda: mean(gain, 15), both),
        ("fig6.rep15_latency", lambda: mean(cut, 15), both),
        ("fig6c.dop4_low", lambda: gain("low", 20, 4), "Mean over low rates."),
        ("fig6d.dop4_low", lambda: cut("low", 20, 4), "Mean over low rates."),
        ("fig6c.dop4_peak", lambda: gain("peak", 20, 4), peak),
        ("fig6.trends", trends, "Rises at every step; convex: no rise smaller than the one before, "
         "saturating: no larger."),
    )  # fmt: skip
    for name, ours, note in answers:
        with suppress(KeyError):  # a point that other settings leave out
            yield answer(f"cocoserve.{name}", ours(), note)


def _rises(values: list[float]) -> bool:
    return all(b > a for a, b in pairwise(values))


def _is_convex(values: list[float]) -> bool:
    steps = [b - a for a, b in pairwise(values)]
    return all(b >= a for a, b in pairwise(steps))


def _is_concave(values: list[float]) -> bool:
    return _is_convex([-value for value in values])
