"""Figures of CoCoServe beyond the paper."""

from __future__ import annotations

from matplotlib.figure import Figure

from experiments.figures.style import BLUE, GREEN, SKY, Tables, canvas, finish, rows_of

__all__ = ["draw_host_copies"]


def draw_host_copies(tables: Tables, caption: str) -> Figure:
    """Draw tokens a second and rows by copied or read layers."""
    figure, (left, right) = canvas(9.6, 4.2, 2)
    ways = dict.fromkeys(row["way"] for row in rows_of(tables["copies"]))
    for way in ways:
        colour = GREEN if "no second" in way else SKY if "host" in way else BLUE
        style = ":" if "free" in way else "-"
        mine = [row for row in rows_of(tables["copies"], way=way) if row["rows"]]
        x = [row["layers"] for row in mine]
        left.plot(x, [row["tokens_per_s"] for row in mine], style, color=colour, label=way)
        right.plot(x, [row["rows"] for row in mine], style, color=colour)
    for axes, title in ((left, "tokens/s"), (right, "rows that memory holds")):
        axes.set_xlabel("layers copied, or read from host memory")
        axes.set_ylabel(title)
        axes.set_ylim(bottom=0)
    left.set_ylim(0, 1.6 * max(row["tokens_per_s"] for row in rows_of(tables["copies"])))
    left.legend(loc="upper left")
    return finish(figure, "CoCoServe: copies of layers that read host memory", caption)
