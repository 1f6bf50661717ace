"""Figure of fleets with more models than slices."""

from __future__ import annotations

from itertools import cycle
from typing import Final

from matplotlib.figure import Figure

from experiments.figures.style import (
    BLUE,
    COLOURS,
    GREEN,
    ORANGE,
    Tables,
    canvas,
    finish,
    label_ends,
    rows_of,
)

__all__ = ["draw_fleets"]

LINES: Final = {
    "c2cserve_plus": (BLUE, "-"),
    "C2CServe as published": (GREEN, "-"),
    "ServerlessLLM": (ORANGE, "-"),
    "ServerlessLLM, our start": (ORANGE, "--"),
}
FEWEST_PERCENT: Final = 0.001  # lower end of the axis; no request is drawn on it


def draw_fleets(tables: Tables, caption: str) -> Figure:
    """Draw the share off target over models, a line a system."""
    rows = rows_of(tables["systems"], is_drawn=True)
    sizes = sorted({r["models"] for r in rows})
    figure, (axes,) = canvas(8.4, 4.4)
    names = dict.fromkeys(r["system"] for r in rows)
    ends = []
    for name, other in zip(names, cycle(COLOURS), strict=False):
        colour, dash = LINES.get(name, (other, "-"))
        chosen = sorted((r for r in rows if r["system"] == name), key=lambda r: r["models"])
        x = [sizes.index(r["models"]) for r in chosen]
        y = [max(FEWEST_PERCENT, 100.0 - r["both_percent"]) for r in chosen]
        axes.plot(x, y, dash, color=colour, marker="o", markersize=4, clip_on=False)
        ends.append((x[-1], y[-1], name, colour))
    axes.set_yscale("log")
    axes.set(ylim=(FEWEST_PERCENT, 100.0), xlabel="models on one GH200",
             ylabel="requests off target")  # fmt: skip
    ticks = [FEWEST_PERCENT * 10**n for n in range(6)]
    axes.set_yticks(ticks, ["none", *(f"{tick:g}%" for tick in ticks[1:])])
    axes.set_xticks(range(len(sizes)), [f"{n}" for n in sizes])
    axes.spines["bottom"].set_position(("outward", 8))
    label_ends(axes, ends)
    return finish(figure, "More models than slices", caption)
