"""Style of all figures."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import matplotlib as mpl
import pyarrow as pa
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.rcsetup import cycler

__all__ = [
    "BLUE",
    "CAPTION_ID",
    "COLOURS",
    "GREEN",
    "GREY",
    "INK",
    "ORANGE",
    "PUBLISHED",
    "PURPLE",
    "RC",
    "SKY",
    "TITLE_ID",
    "VERMILION",
    "Tables",
    "beside",
    "canvas",
    "draw_table",
    "finish",
    "label_ends",
    "look",
    "mark_published",
    "rows_of",
    "system_colours",
]

Tables = Mapping[str, pa.Table]

# Okabe and Ito's palette, darkest contrasts first.
BLUE, ORANGE, GREEN, PURPLE = "#0072B2", "#E69F00", "#009E73", "#CC79A7"
SKY, VERMILION = "#56B4E9", "#D55E00"
COLOURS = (BLUE, ORANGE, GREEN, PURPLE, SKY, VERMILION)
# Systems by the beginning of their names, the longest first.
_SYSTEMS = {
    "c2cserve_plus": BLUE, "c2cserve": GREEN, "serverlessllm": ORANGE, "aegaeon": PURPLE,
    "moe_infinity": VERMILION,
}  # fmt: skip
INK, GREY = "#222222", "#767676"

PUBLISHED: dict[str, Any] = {
    "marker": "D",
    "markersize": 7,
    "markerfacecolor": "none",
    "markeredgecolor": INK,
    "markeredgewidth": 1.5,
    "linestyle": "none",
    "zorder": 5,
}

RC: dict[str, Any] = {
    "figure.dpi": 150,
    "savefig.dpi": 150,
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": GREY,
    "axes.labelcolor": INK,
    "axes.prop_cycle": cycler(color=COLOURS),
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "grid.color": "#E3E3E3",
    "grid.linewidth": 0.8,
    "lines.linewidth": 1.8,
    "xtick.color": INK,
    "ytick.color": INK,
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "svg.fonttype": "none",  # text that can be searched and edited
    "pdf.fonttype": 42,
}
CAPTION_POINTS = 7.5
# Ids of both texts in an SVG, before "-" and the points that they take; the report leaves them out.
TITLE_ID, CAPTION_ID = "title", "caption"
_TITLE_POINTS = 11.5
_finding: ContextVar[str] = ContextVar("finding", default="")
_LEGEND_ROW_POINTS = 13.0


def system_colours(names: Sequence[str]) -> dict[str, tuple[str, str]]:
    """Return each system's colour and SVG dashes."""
    colours: dict[str, tuple[str, str]] = {}
    for name in names:
        used = [colour for colour, _ in colours.values()]
        free = next(c for c in (*COLOURS, GREY) if c not in used)
        colour = next((c for begin, c in _SYSTEMS.items() if name.startswith(begin)), free)
        colours[name] = (colour, "6 3" if colour in used else "")
    return colours


@contextmanager
def look(finding: str = "") -> Iterator[None]:
    """Use the style in the block, without the user's matplotlibrc."""
    token = _finding.set(finding)
    try:
        with mpl.rc_context():
            mpl.rcdefaults()
            mpl.rcParams.update(RC)  # type: ignore[arg-type]  # its keys are literals
            yield
    finally:
        _finding.reset(token)


def canvas(
    width: float, height: float, columns: int = 1, rows: int = 1, **more: Any
) -> tuple[Figure, list[Axes]]:
    """Return a windowless figure, and axes in row order."""
    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False, **more)
    return figure, list(axes.flat)


def finish(
    figure: Figure, title: str, caption: str, legend: Axes | None = None, columns: int = 4
) -> Figure:
    """Put title and wrapped caption around the axes."""
    width, height = figure.get_size_inches()
    lines = textwrap.wrap(caption, width=int(width * 72 / (CAPTION_POINTS * 0.56)))
    below_points = len(lines) * CAPTION_POINTS * 1.35 + 10
    titles = textwrap.wrap(_finding.get() or title, int(width * 72 / (_TITLE_POINTS * 0.66)))
    above_points = 26 + (len(titles) - 1) * _TITLE_POINTS * 1.2
    below, above = (points / 72 / height for points in (below_points, above_points))
    if legend is not None:
        handles, names = legend.get_legend_handles_labels()
        labels = dict(zip(names, handles, strict=True))  # each once
        figure.legend(labels.values(), labels, loc="upper left", ncols=columns, borderaxespad=0.0,
                      handlelength=3.0,  # dashes are seen beside a marker
                      bbox_to_anchor=(0.006, 1 - above))  # fmt: skip
        above += (-(-len(labels) // columns) * _LEGEND_ROW_POINTS + 6) / 72 / height
    engine = figure.get_layout_engine()
    if isinstance(engine, ConstrainedLayoutEngine):
        engine.set(rect=(0.01, below, 0.98, 1 - below - above))
    figure.text(0.012, 1 - 6 / 72 / height, "\n".join(titles), ha="left", va="top",
                fontsize=_TITLE_POINTS, fontweight="bold", color=INK,
                gid=f"{TITLE_ID}-{above_points:g}")  # fmt: skip
    figure.text(0.012, 5 / 72 / height, "\n".join(lines), ha="left", va="bottom",
                fontsize=CAPTION_POINTS, color=GREY, linespacing=1.3,
                gid=f"{CAPTION_ID}-{below_points:g}")  # fmt: skip
    return figure


def mark_published(
    axes: Axes, x: Sequence[float], y: Sequence[float], label: str = "paper"
) -> None:
    """Mark printed values with hollow diamonds."""
    axes.plot(x, y, label=label, **PUBLISHED)


def label_ends(axes: Axes, ends: Sequence[tuple[float, float, str, str]]) -> None:
    """Write names right of lines' last points (x, y, name, colour), apart."""
    axes.figure.draw_without_rendering()  # type: ignore[union-attr]
    right = max(x for x, *_ in ends)
    places = sorted(
        (float(axes.transData.transform((x, y))[1]), name, colour) for x, y, name, colour in ends
    )
    step = 1.35 * mpl.rcParams["font.size"] * axes.figure.dpi / 72
    last = -math.inf
    for y, name, colour in places:
        last = max(y, last + step)
        value = axes.transData.inverted().transform((0.0, last))[1]
        axes.annotate(name, (right, value), (8, 0), textcoords="offset points", va="center",
                      color=colour, fontweight="bold", annotation_clip=False)  # fmt: skip


def beside(rows: Sequence[Mapping[str, Any]], row: Mapping[str, Any], step: float) -> float:
    """Return the x position of a system's bar."""
    models = list(dict.fromkeys(r["model"] for r in rows))
    here = [r["system"] for r in rows if r["model"] == row["model"]]
    return models.index(row["model"]) + step * (here.index(row["system"]) - (len(here) - 1) / 2)


def rows_of(table: pa.Table, **where: Any) -> list[dict[str, Any]]:
    """Return the rows whose columns have these values."""
    return [r for r in table.to_pylist() if all(r[k] == v for k, v in where.items())]


def draw_table(
    axes: Axes,
    header: Sequence[str],
    cells: Sequence[Sequence[str]],
    below: Sequence[Sequence[str]],
    widths: Sequence[float],
) -> None:
    """Draw a table with a small second line; `widths`: shares."""
    axes.axis("off")
    axes.set(xlim=(0, 1), ylim=(len(cells) + 1, 0))
    edges = [sum(widths[:i]) / sum(widths) for i in range(len(widths))]
    for x, text in zip(edges, header, strict=True):
        axes.text(x + 0.01, 0.55, text, va="center", fontweight="bold", color=INK)
    axes.axhline(1, color=INK, linewidth=1.2)
    for i, (row, small) in enumerate(zip(cells, below, strict=True)):
        for x, text, second in zip(edges, row, small, strict=True):
            axes.text(x + 0.01, i + 1.38, text, va="center", color=INK, fontsize=10)
            axes.text(x + 0.01, i + 1.74, second, va="center", color=GREY, fontsize=7.5)
        axes.axhline(i + 2, color="#D5D5D5", linewidth=0.8)
