"""Figure of goodput and attainment against load, one column for each family of systems."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle
from typing import Any, Final

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.c2cserve.every_system import WITHIN_PERCENT
from experiments.figures.style import (
    BLUE,
    GREEN,
    GREY,
    INK,
    ORANGE,
    PURPLE,
    SKY,
    VERMILION,
    Tables,
    canvas,
    finish,
    rows_of,
)

__all__ = ["draw_every_system"]

# By the beginning of a name; systems of one colour differ in line and marker.
COLOURS: Final = {
    "c2cserve_plus": BLUE, "c2cserve": GREEN, "engine": SKY, "layer": GREY,
    "serverless": ORANGE, "aegaeon": PURPLE,
    "mig": VERMILION, "vllm": VERMILION, "dedicated": INK, "moe": VERMILION, "finemoe": BLUE,
    "tessera": GREEN, "pd": ORANGE, "af": VERMILION, "replicas": GREY,
    "cocoserve": BLUE, "weaver": BLUE,
}  # fmt: skip
LINES: Final = ("-", "--", ":", "-.", (0, (5, 1, 1, 1, 1, 1)))
MARKERS: Final = ("o", "s", "^", "v", "D")


def draw_every_system(tables: Tables, caption: str) -> Figure:
    """Draw goodput above and attainment below, over the load."""
    rows = rows_of(tables["loads"])
    families = list(dict.fromkeys(r["family"] for r in rows))
    figure, panels = canvas(3.2 * len(families), 6.2, columns=len(families), rows=2)
    for column, family in enumerate(families):
        here = [r for r in rows if r["family"] == family]
        above, below = panels[column], panels[len(families) + column]
        _lines(above, here, "goodput_rps")
        _lines(below, here, "both_percent")
        rates = sorted({r["rate_rps"] for r in here})
        above.plot(rates, rates, color=INK, linewidth=0.8, alpha=0.4)
        above.set(yscale="log", ylim=(rates[0] / 4, rates[-1] * 1.3))
        above.set_title(family, fontsize=8.5)
        below.axhline(WITHIN_PERCENT, color=INK, linewidth=0.8, alpha=0.4)
        below.set(ylim=(-3, 103), xlabel="requests/s")
        below.legend(
            loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=2, fontsize=7.5, handlelength=3
        )
    panels[0].set_ylabel("goodput (requests/s)")
    panels[len(families)].set_ylabel("both targets met (%)")
    return finish(figure, "Goodput and attainment against load, every system", caption)


def _lines(axes: Axes, rows: Sequence[dict[str, Any]], column: str) -> None:
    looks = {
        colour: zip(cycle(LINES), cycle(MARKERS), strict=False) for colour in {*COLOURS.values()}
    }
    for system in dict.fromkeys(r["system"] for r in rows):
        colour = next(c for begin, c in COLOURS.items() if system.startswith(begin))
        line, marker = next(looks[colour])
        mine = sorted((r for r in rows if r["system"] == system), key=lambda r: r["rate_rps"])
        axes.plot(
            [r["rate_rps"] for r in mine], [r[column] for r in mine], linestyle=line,
            marker=marker, markersize=3.5, linewidth=1.4, color=colour, label=system,
        )  # fmt: skip
    axes.set_xscale("log", base=2)
    ticks = sorted({r["rate_rps"] for r in rows})
    axes.set_xticks(ticks, [f"{t:g}" for t in ticks])
