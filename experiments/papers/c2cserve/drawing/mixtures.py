"""Figure of MoE models under a trace."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

from experiments.claims import claim
from experiments.figures.style import (
    BLUE,
    GREEN,
    INK,
    ORANGE,
    VERMILION,
    Tables,
    canvas,
    finish,
    rows_of,
)

__all__ = ["draw_fig12_moe"]

COLOURS = {
    "C2CServe": GREEN, "ServerlessLLM": ORANGE, "MoE-Infinity": VERMILION, "FineMoE": BLUE
}  # fmt: skip
MARKS = {"ttft_p50_s": "o", "ttft_p95_s": "s", "ttft_p99_s": "^"}


def draw_fig12_moe(tables: Tables, caption: str) -> Figure:
    """Draw percentiles of TTFT by system and load, with the printed band."""
    rows = rows_of(tables["totals"])
    loads = list(dict.fromkeys(r["load"] for r in rows))
    systems = list(dict.fromkeys(r["system"] for r in rows))
    figure, panels = canvas(
        9.0, 1.4 + 0.55 * len(systems), columns=len(loads), sharey=True, sharex=True
    )
    band = claim("c2cserve.fig12.moe.c2cserve.ttft").value
    for axes, load in zip(panels, loads, strict=True):
        for place, system in enumerate(systems):
            here = [r for r in rows if (r["load"], r["system"]) == (load, system)]
            for column, mark in MARKS.items():
                values = [r[column] for r in here]
                axes.plot([min(values), max(values)], [place, place], color=INK, linewidth=1.2)
                axes.plot(float(np.median(values)), place, mark, color=COLOURS[system],
                          label=column[5:8] if place == 0 else None)  # fmt: skip
        axes.axvspan(*band, color=GREEN, alpha=0.1, linewidth=0, label="paper, C2CServe")
        axes.axvline(1.0, color=VERMILION, linestyle=":", linewidth=1.2, label="target")
        compression = next(r["compression"] for r in rows if r["load"] == load)
        axes.set_title(f"{load}, compression {compression:g}", fontsize=9.5)
        axes.set(xlabel="TTFT (s)", xscale="log")
        axes.xaxis.set_major_locator(LogLocator())
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.grid(visible=True, axis="x")
    panels[0].set_yticks(range(len(systems)), systems)
    panels[0].set_ylim(len(systems) - 0.5, -0.5)
    title = "C2CServe, Fig. 12: trace replay, mixtures"
    return finish(figure, title, caption, panels[0], 5)
