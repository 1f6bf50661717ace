"""Figure of concurrent agents: the most within the targets, by chip and over a tool's time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

from experiments.figures.style import (
    BLUE,
    GREEN,
    GREY,
    SKY,
    Tables,
    canvas,
    finish,
    rows_of,
)

__all__ = ["draw_agents"]

_COLOURS: Final = (GREY, SKY, BLUE, GREEN)
_WIDTH: Final = 0.2  # of a bar


def draw_agents(tables: Tables, caption: str) -> Figure:
    """Draw a group of bars for each chip, and lines over the time of a tool."""
    rows = rows_of(tables["most"])
    figure, (by_chip, over_time) = canvas(11.0, 5.0, columns=2)
    colours = dict(zip(dict.fromkeys(r["tier"] for r in rows), _COLOURS, strict=False))
    _by_chip(by_chip, [r for r in rows if r["tool_s"] == rows[0]["tool_s"]], colours)
    timed = {r["chip"] for r in rows if r["tool_s"] != rows[0]["tool_s"]}
    _over_time(over_time, [r for r in rows if r["chip"] in timed], colours)
    return finish(figure, "Concurrent coding agents on one chip", caption)


def _by_chip(axes: Axes, rows: Sequence[dict[str, Any]], colours: dict[str, str]) -> None:
    chips = list(dict.fromkeys(r["chip"] for r in rows))
    middle = (len(colours) - 1) / 2
    for k, (tier, colour) in enumerate(colours.items()):
        here = [r["agents"] for r in rows if r["tier"] == tier]
        x = np.arange(len(chips)) + (k - middle) * _WIDTH
        bars = axes.bar(x, here, 0.94 * _WIDTH, color=colour, label=tier)
        axes.bar_label(bars, [str(n) for n in here], padding=2, fontsize=7)
    axes.set_xticks(
        range(len(chips)), [chip.replace(", ", "\n").replace("'s chip", "") for chip in chips]
    )
    axes.set(ylabel="concurrent agents", title="(a) By chip and link",
             ylim=(0, 1.35 * max(1, *(r["agents"] for r in rows))))  # fmt: skip
    axes.legend(loc="upper left", fontsize=8)


def _over_time(axes: Axes, rows: Sequence[dict[str, Any]], colours: dict[str, str]) -> None:
    chips = list(dict.fromkeys(r["chip"] for r in rows))
    for chip, line in zip(chips, ("-", "--"), strict=False):
        for tier, colour in [*colours.items()][1:]:
            here = sorted(
                (r["tool_s"], r["agents"]) for r in rows if (r["chip"], r["tier"]) == (chip, tier)
            )
            axes.plot(*zip(*here, strict=True), line, marker="o", color=colour, markersize=4)
        axes.plot([], [], line, color=GREY, label=chip)
    axes.set(xlabel="mean time of a tool (s)", ylabel="concurrent agents", xscale="log",
             yscale="log", title="(b) Over the time of a tool, colours as in (a)")  # fmt: skip
    times = sorted({r["tool_s"] for r in rows})
    axes.set_xticks(times, [f"{s:g}" for s in times])
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.yaxis.set_major_formatter("{x:g}")
    axes.legend(loc="upper left", fontsize=8)
