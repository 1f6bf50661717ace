"""Fig. 6: throughput and latency by copied layers, and by copies of each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any, Final

import pyarrow as pa

from experiments.claims import Result, answer
from experiments.claims.robust import readings_table, under_readings
from experiments.cocoserve.compared import SAID, server
from experiments.cocoserve.drained import DEFAULTS, LOW, PEAK, Drained, Served, drained, mean_over
from experiments.figure import SIMULATOR, Computed, Context, figure

__all__ = ["COPIES", "LAYERS", "compute"]

LAYERS: Final = (0, 15, 20, 25, 30)
COPIES: Final = (1, 2, 3, 4)
_LAYERS_OF_COPIES: Final = 20


@figure("cocoserve.fig6", title="CoCoServe, Fig. 6: copies of layers",
        draw="cocoserve.draw_gains", needs=SIMULATOR)  # fmt: skip
def compute(context: Context) -> Computed:
    """Return gains over the unscaled server at the peak and at low load."""
    rows = list(_rows(DEFAULTS, context))

    def answers(**reading: Any) -> Iterator[Result]:
        return _results(_rows(server(reading)[0], replace(context, progress=None)))

    results = under_readings(_results(rows), answers, SAID, everything=not context.quick)
    return Computed(
        tables={"gains": pa.Table.from_pylist(rows), "readings": readings_table(results)},
        results=results,
        caption=(
            "Lines: gain of throughput and cut of latency by copied layers, at low load and at "
            f"{PEAK} requests at once. Diamonds: the paper at its peak."
        ),
        assumptions=(
            "The model is LLaMA-13B on A100 of 40 GB over PCIe.",
            "Prompts have 85 tokens, answers 256, and batches are static.",
            "A rate of r is read as r requests at once.",
            f"Low load is the mean over {LOW[0]} to {LOW[1]} requests, the peak is {PEAK} "
            "requests.",
            "The batch of 15 grows by the memory that copies free on the first card.",
            "Copies take even shares of a batch.",
            "The host's time a step is fitted to the baseline's 20 s (in-sample), and nothing "
            "else is.",
            "readings.yaml lists the readings of all that the paper leaves open.",
            "Devices are simulated at the datasheet's rates.",
        ),
    )


def _rows(base: Served, context: Context) -> Iterator[dict[str, Any]]:
    asked = [(n, 2 if n else 1) for n in LAYERS]
    asked += [(_LAYERS_OF_COPIES, c) for c in COPIES if c > 2]
    done = 0
    for load in ("low", "peak"):
        before: Drained | None = None
        for layers, copies in asked:
            found = _served(base, layers, copies, load)
            before = before or found
            done += 1
            if context.progress:
                context.progress(done, 2 * len(asked))
            yield {
                "load": load, "layers": layers, "copies": copies,
                "throughput_rps": found.throughput_rps, "latency_s": found.latency_s,
                "throughput_gain_percent": 100 * (found.throughput_rps / before.throughput_rps - 1),
                "latency_cut_percent": 100 * (1 - found.latency_s / before.latency_s),
            }  # fmt: skip


def _served(base: Served, layers: int, copies: int, load: str) -> Drained:
    served = replace(base, layers=layers, copies=max(2, copies))
    return drained(served, PEAK) if load == "peak" else mean_over(served, LOW)


def _results(rows: Iterable[dict[str, Any]]) -> Iterator[Result]:
    at = {(r["load"], r["layers"], r["copies"]): r for r in rows}

    def gain(load: str, layers: int, copies: int = 2) -> float:
        return float(at[load, layers, copies]["throughput_gain_percent"])

    def cut(load: str, layers: int, copies: int = 2) -> float:
        return float(at[load, layers, copies]["latency_cut_percent"])

    peak = "50 requests at once."
    both = "The load is not printed: the mean over low rates and the peak."
    for layers in (20, 25, 30):
        yield _answer(f"fig6a.rep{layers}", gain("peak", layers), peak)
    yield _answer("fig6.rep25_second", gain("peak", 25), "The paper's second number of 25 layers.")
    yield _answer("fig6a.rep30_ratio", 1 + gain("peak", 30) / 100, peak)
    yield _answer("fig6b.baseline_latency", at["peak", 0, 1]["latency_s"], "Fitted.")
    worst = max(at[load, 30, 2]["latency_s"] for load in ("low", "peak"))
    yield _answer("fig6b.rep30_latency", worst, "The worse of low load and peak.")
    yield _answer("fig6b.rep30_avg", (cut("low", 30) + cut("peak", 30)) / 2, both)
    yield _answer("fig6.rep15_throughput", (gain("low", 15) + gain("peak", 15)) / 2, both)
    yield _answer("fig6.rep15_latency", (cut("low", 15) + cut("peak", 15)) / 2, both)
    yield _answer("fig6c.dop4_low", gain("low", _LAYERS_OF_COPIES, 4), "Mean over low rates.")
    yield _answer("fig6d.dop4_low", cut("low", _LAYERS_OF_COPIES, 4), "Mean over low rates.")
    yield _answer("fig6c.dop4_peak", gain("peak", _LAYERS_OF_COPIES, 4), peak)
    by_layers = [gain("peak", n) for n in LAYERS[1:]]
    by_copies = {
        load: [0.0, *(gain(load, _LAYERS_OF_COPIES, c) for c in COPIES[1:])]
        for load in ("low", "peak")
    }
    yield _answer(
        "fig6.trends",
        {
            "layers": _rises(by_layers) and _is_convex(by_layers),
            "dop": all(map(_rises, by_copies.values())) and _is_concave(by_copies["peak"]),
        },
        "Rises at every step; convex: no rise smaller than the one before, saturating: no larger.",
    )


def _answer(name: str, ours: Any, note: str) -> Result:
    return answer(f"cocoserve.{name}", ours, note)


def _rises(values: list[float]) -> bool:
    return all(b > a for a, b in pairwise(values))


def _is_convex(values: list[float]) -> bool:
    steps = [b - a for a, b in pairwise(values)]
    return all(b >= a for a, b in pairwise(steps))


def _is_concave(values: list[float]) -> bool:
    return _is_convex([-value for value in values])
