"""Share of requests within targets by load."""

from __future__ import annotations

import pyarrow as pa
from matplotlib.figure import Figure

from experiments.figures.style import BLUE, COLOURS, GREY, VERMILION, canvas, finish

__all__ = ["draw_capacity"]


def draw_capacity(
    table: pa.Table,
    *,
    quantity: str,
    unit: str,
    goal: float,
    best: tuple[float, float, float] | None,
    title: str,
    caption: str,
) -> Figure:
    """Draw a search's runs."""
    figure, (axes,) = canvas(6.4, 3.8)
    rows = [r for r in table.to_pylist() if r["attainment_both"] is not None]
    seeds = sorted({r["seed"] for r in rows})
    for seed, colour in zip(seeds, (COLOURS * len(seeds))[: len(seeds)], strict=True):
        seed_rows = sorted((r for r in rows if r["seed"] == seed), key=lambda r: r[quantity])
        x, y = [r[quantity] for r in seed_rows], [100 * r["attainment_both"] for r in seed_rows]
        axes.plot(x, y, color=colour, linewidth=1.0, alpha=0.6)
        for meets, fill in ((True, colour), (False, "white")):
            indexes = [i for i, r in enumerate(seed_rows) if r["meets"] is meets]
            axes.plot(
                [x[i] for i in indexes], [y[i] for i in indexes], "o", markersize=4.5, color=colour,
                markerfacecolor=fill, label=f"seed {seed}" if meets and len(seeds) <= 6 else None,
            )  # fmt: skip
    axes.axhline(100 * goal, color=VERMILION, linestyle="--", linewidth=1.2, label="wanted")
    if best is not None:
        value, low, high = best
        axes.axvspan(low, high, color=BLUE, alpha=0.15, linewidth=0)
        axes.axvline(value, color=BLUE, linewidth=1.6, label="answer")
    values = [r[quantity] for r in rows]
    if values and max(values) > 8 * min(values):
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.set(xlabel=unit, ylabel="requests on both targets (%)")
    axes.tick_params(colors=GREY)
    axes.legend(loc="lower left")
    return finish(figure, title, caption)
