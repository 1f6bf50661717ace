"""Figure of concurrent agents."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from experiments.figures.style import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    SKY,
    Tables,
    canvas,
    finish,
    rows_of,
)

__all__ = ["draw_agents"]

_COLOURS: Final = (GREY, SKY, GREEN, ORANGE, BLUE)
_WIDTH: Final = 0.17  # of a bar


def draw_agents(tables: Tables, caption: str) -> Figure:
    """Draw bars by chip, and lines over tool time."""
    rows = rows_of(tables["most"])
    figure, (by_chip, over_time) = canvas(11.0, 5.0, columns=2)
    colours = dict(zip(dict.fromkeys(r["tier"] for r in rows), _COLOURS, strict=False))
    first = rows[0]
    _by_chip(by_chip, [r for r in rows if r["tool_s"] == first["tool_s"]], colours)
    timed = {r["tier"] for r in rows if r["tool_s"] != first["tool_s"]}
    lines = [r for r in rows if r["tier"] in timed and r["chip"] == first["chip"]]
    _over_time(over_time, lines, colours)
    return finish(figure, "Concurrent coding agents on one chip", caption)


def _by_chip(axes: Axes, rows: Sequence[dict[str, Any]], colours: dict[str, str]) -> None:
    chips = list(dict.fromkeys(r["chip"] for r in rows))
    middle = (len(colours) - 1) / 2
    for k, (tier, colour) in enumerate(colours.items()):
        here = [r["agents"] for r in rows if r["tier"] == tier]
        x = np.arange(len(chips)) + (k - middle) * _WIDTH
        bars = axes.bar(x, here, 0.94 * _WIDTH, color=colour, label=tier)
        axes.bar_label(bars, [str(n) for n in here], padding=2, fontsize=7)
    axes.set_xticks(range(len(chips)), chips)
    axes.set(ylabel="concurrent agents", title="(a) By chip and memory for KV caches",
             ylim=(0, 1.35 * max(1, *(r["agents"] for r in rows))))  # fmt: skip
    axes.legend(loc="upper left", fontsize=8)


def _over_time(axes: Axes, rows: Sequence[dict[str, Any]], colours: dict[str, str]) -> None:
    for tier, colour in colours.items():
        here = sorted((r["tool_s"], r["agents"]) for r in rows if r["tier"] == tier)
        if here:
            axes.plot(*zip(*here, strict=True), marker="o", color=colour, markersize=5, label=tier)
    axes.set(xlabel="mean time of a tool (s)", ylabel="concurrent agents", xscale="log",
             ylim=(0, 1.35 * max(1, *(r["agents"] for r in rows))),
             title=f"(b) {rows[0]['chip']} over the time of a tool")  # fmt: skip
    times = sorted({r["tool_s"] for r in rows})
    axes.set_xticks(times, [f"{s:g}" for s in times])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.legend(loc="upper left", fontsize=8)
