"""Cost against latency of the fleets that a search tried, and its Pareto front."""

from __future__ import annotations

import pyarrow as pa
from matplotlib.figure import Figure

from experiments.figures.style import COLOURS, INK, VERMILION, canvas, finish

__all__ = ["draw_search"]

_PANELS = (
    ("ttft_p99_s", 1.0, "TTFT p99 (s)"),
    ("tpot_p99_s", 1e3, "TPOT p99 (ms)"),
)


def draw_search(
    table: pa.Table, *, best: int | None, title: str, caption: str, systems: str = "system"
) -> Figure:
    """Draw the points of a search.

    Args:
      table: a row a point: trial, meets, on_front, and the objectives.
      best: the trial that is the answer, if there is one.
      title: above.
      caption: below.
      systems: the column that colours tell apart.
    """
    figure, axes = canvas(8.4, 4.0, columns=2)
    rows = [r for r in table.to_pylist() if r["gpu_hours"] is not None]
    names = list(dict.fromkeys(r[systems] for r in rows))
    for panel, (column, factor, label) in zip(axes, _PANELS, strict=True):
        for name, colour in zip(names, (COLOURS * len(names))[: len(names)], strict=True):
            for meets in (False, True):
                own = [r for r in rows if r[systems] == name and r["meets"] is meets]
                panel.plot(
                    [r["gpu_hours"] for r in own], [factor * r[column] for r in own], "o",
                    color=colour, markersize=5, markerfacecolor=colour if meets else "white",
                    alpha=1.0 if meets else 0.55, label=name if meets else None,
                )  # fmt: skip
        front = [r for r in rows if r["on_front"]]
        panel.plot(
            [r["gpu_hours"] for r in front], [factor * r[column] for r in front], "o",
            markersize=9.5, markerfacecolor="none", color=INK, markeredgewidth=1.1,
            label="Pareto front",
        )  # fmt: skip
        for row in rows:
            if row["trial"] == best:
                panel.plot(row["gpu_hours"], factor * row[column], "*", color=VERMILION,
                           markersize=13, zorder=6, label="answer")  # fmt: skip
        panel.set(xlabel="GPU-hours", ylabel=label, xlim=(0, None))
        values = [factor * r[column] for r in rows if r[column] > 0]
        if values and max(values) > 20 * min(values):
            panel.set_yscale("log")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside right upper")
    return finish(figure, title, caption)
