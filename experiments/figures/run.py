"""Figures of one run."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from c2c.metrics import tpot_s, ttft_s
from experiments.figures.style import BLUE, COLOURS, GREY, VERMILION, canvas, finish

__all__ = ["draw_run"]

_WINDOWS = 120  # most points of a line over time
_PER_WINDOW = 8  # fewest requests of a window, about, for its percentiles
_CDF_POINTS = 400
_MODELS_SHOWN = len(COLOURS) - 1

Floats = npt.NDArray[np.float64]


def draw_run(requests: pa.Table, caption: str) -> dict[str, Figure]:
    """Return a run's figures by file name."""
    arrival = _numbers(requests, "arrival_s")
    first, last = _numbers(requests, "first_token_s"), _numbers(requests, "finished_s")
    ttft = ttft_s(arrival, first)
    tpot = tpot_s(first, last, _numbers(requests, "output_tokens"))
    model = _names(requests)
    return {
        "ttft_over_time": _over_time(arrival, ttft, _numbers(requests, "ttft_slo_s"), caption),
        "latency_cdf": _cdfs(ttft, tpot, model, requests, caption),
    }


def _over_time(arrival: Floats, ttft: Floats, slo: Floats, caption: str) -> Figure:
    figure, (upper, axes) = canvas(8.4, 4.6, rows=2, sharex=True, height_ratios=[1, 2.6])
    unit, seconds = _time_unit(float(arrival.max()) if len(arrival) else 1.0)
    windows = min(_WINDOWS, max(1, len(arrival) // _PER_WINDOW))
    end_s = max(float(arrival.max()), 1e-9) if len(arrival) else 1.0
    edges = np.linspace(0.0, end_s, windows + 1)
    window = np.clip(np.searchsorted(edges, arrival, side="right") - 1, 0, windows - 1)
    counts = np.bincount(window, minlength=windows)
    middle = (edges[:-1] + edges[1:]) / 2 / seconds
    upper.stairs(counts / np.diff(edges), edges / seconds, fill=True, color=GREY, linewidth=0)
    upper.set(ylabel="requests/s", ylim=(0, None))
    levels = _windowed(window, ttft, (5.0, 50.0, 95.0), windows)
    if windows < _WINDOWS:  # a short trace: each request can be seen
        axes.plot(arrival / seconds, ttft, ".", color=GREY, markersize=3, label="request")
    axes.fill_between(middle, levels[0], levels[2], color=BLUE, alpha=0.25, linewidth=0,
                      label="5th to 95th percentile")  # fmt: skip
    few = "o" if windows < _WINDOWS else ""
    axes.plot(middle, levels[1], color=BLUE, marker=few, markersize=3, label="median")
    for i, target in enumerate(np.unique(slo)):
        axes.axhline(target, color=VERMILION, linestyle="--", linewidth=1.2,
                     label="" if i else "target")  # fmt: skip
    axes.set(xlabel=f"time ({unit})", ylabel="TTFT (s)", yscale="log", xlim=(0, end_s / seconds))
    axes.legend(loc="lower right", ncols=4, bbox_to_anchor=(1, 1))
    return finish(figure, "TTFT over time", caption)


def _windowed(
    window: npt.NDArray[Any], values: Floats, ps: tuple[float, ...], windows: int
) -> Floats:
    levels = np.full((len(ps), windows), np.nan)
    mask = ~np.isnan(values)
    window, values = window[mask], values[mask]
    order = np.argsort(window, kind="stable")
    edges = np.searchsorted(window[order], np.arange(windows + 1))
    for i, (start, end) in enumerate(pairwise(edges)):
        if end > start:
            levels[:, i] = np.percentile(values[order[start:end]], ps)
    return levels


def _cdfs(
    ttft: Floats, tpot: Floats, model: npt.NDArray[Any], requests: pa.Table, caption: str
) -> Figure:
    figure, (left, right) = canvas(8.4, 3.6, columns=2, sharey=True)
    names, counts = np.unique(model, return_counts=True)
    popular = names[np.argsort(-counts, kind="stable")][:_MODELS_SHOWN]
    for axes, values, slo, unit, title, scale in (
        (left, ttft, "ttft_slo_s", 1.0, "TTFT (s)", "log"),
        (right, 1e3 * tpot, "tpot_slo_s", 1e3, "TPOT (ms)", "linear"),
    ):
        if len(names) > 1:
            for name, colour in zip(popular, COLOURS[1:], strict=False):
                _cdf(axes, values[model == name], colour, str(name), 1.2)
        _cdf(axes, values, BLUE, "all", 2.2)
        for target in np.unique(_numbers(requests, slo)):
            axes.axvline(unit * target, color=VERMILION, linestyle="--", linewidth=1.0)
        axes.set(xlabel=title, xscale=scale, ylim=(0, 100))
    left.set_ylabel("requests (%)")
    figure.legend(*right.get_legend_handles_labels(), loc="outside right upper")
    return finish(figure, "TTFT and TPOT; dashed: targets", caption)


def _cdf(axes: Axes, values: Floats, colour: str, label: str, width: float) -> None:
    values = values[~np.isnan(values)]
    if len(values):
        share = np.linspace(0, 100, _CDF_POINTS)
        quantiles = np.percentile(values, share, method="inverted_cdf")
        axes.step(quantiles, share, where="post", color=colour, label=label, linewidth=width)


def _time_unit(span_s: float) -> tuple[str, float]:
    for unit, seconds in (("days", 86_400.0), ("h", 3600.0), ("min", 60.0)):
        if span_s >= 2 * seconds:
            return unit, seconds
    return "s", 1.0


def _numbers(table: pa.Table, column: str) -> Floats:
    return np.asarray(table.column(column).to_numpy(), dtype=np.float64)


def _names(table: pa.Table) -> npt.NDArray[Any]:
    column = table.column("model").unify_dictionaries()
    names = np.array(column.chunk(0).dictionary.to_pylist(), dtype=object)
    codes = np.concatenate([np.asarray(chunk.indices) for chunk in column.chunks])
    return np.asarray(names[codes])
