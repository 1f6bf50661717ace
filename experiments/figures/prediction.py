"""Figure of alpha, chunk and placement by prediction."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter

from experiments.figures.style import (
    BLUE,
    GREEN,
    GREY,
    INK,
    ORANGE,
    VERMILION,
    Tables,
    canvas,
    finish,
    rows_of,
)

__all__ = ["draw_plus_alpha"]

COLOURS = {"Algorithm 2": ORANGE, "predictive": GREEN, "joint": BLUE, "hindsight": INK}
WIDE = 2.0  # smallest ratio of the largest to the smallest value for a logarithmic axis
LEAST = 0.05  # relative margin around values that hardly differ


def draw_plus_alpha(tables: Tables, caption: str) -> Figure:
    """Draw missed targets and p99 TTFT of every rule, grouped by workload."""
    rows = rows_of(tables["rules"])
    workloads = list(dict.fromkeys(r["workload"] for r in rows))
    rules = list(dict.fromkeys(r["rule"] for r in rows))
    figure, panels = canvas(
        11.0, 0.26 * (len(rules) + 1) * len(workloads) + 2.8, columns=3, sharey=True
    )
    shown = (
        ("both_percent", "both targets met (%)"),
        ("ttft_p99_s", "p99 TTFT (s)"),
        ("tpot_p99_s", "p99 TPOT (s)"),
    )
    places, names = [], []
    for group, workload in enumerate(workloads):
        for k, rule in enumerate(rules):
            at = group * (len(rules) + 1) + k
            places.append(at)
            names.append(rule)
            here = [r for r in rows if (r["workload"], r["rule"]) == (workload, rule)]
            for axes, (column, _) in zip(panels, shown, strict=True):
                _dot(axes, at, [r[column] for r in here], COLOURS.get(rule, GREY))
        panels[0].text(0.0, group * (len(rules) + 1) - 0.62, workload, fontsize=8.5,
                       transform=panels[0].get_yaxis_transform(), va="bottom")  # fmt: skip
    for axes, (column, label) in zip(panels, shown, strict=True):
        axes.set(xlabel=label)
        axes.grid(visible=True, axis="x")
        if column != "both_percent":
            _seconds(axes, [r[column] for r in rows])
    panels[1].axvline(1.0, color=VERMILION, linestyle=":", linewidth=1.2)
    panels[0].set_yticks(places, names, fontsize=8)
    panels[0].set_ylim(max(places) + 0.6, -1.3)
    return finish(figure, "Alpha, chunk and placement by prediction", caption)


def _seconds(axes: Axes, values: list[float]) -> None:
    """Scale an axis of seconds: logarithmic, or linear around nearly equal values."""
    low, high = min(values), max(values)
    if high < WIDE * low:
        room = max(0.1 * (high - low), LEAST * high)  # not the last digits of equal numbers
        axes.set_xlim(low - room, high + room)
        axes.xaxis.set_major_locator(MaxNLocator(5))
        return
    axes.set(xscale="log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_formatter(NullFormatter())


def _dot(axes: Axes, at: int, values: list[float], colour: str) -> None:
    axes.plot([min(values), max(values)], [at, at], color=INK, linewidth=1.2)
    axes.plot(float(np.median(values)), at, "o", color=colour, markersize=5.5)
