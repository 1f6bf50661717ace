"""Best system by workload."""

from __future__ import annotations

from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.figures.style import (
    BLUE,
    GREEN,
    GREY,
    INK,
    ORANGE,
    PURPLE,
    VERMILION,
    Tables,
    canvas,
    finish,
    rows_of,
)

__all__ = ["draw_map"]

LOOKS = {
    "C2CServe": (GREEN, "-"),
    "C2CServe to the letter": (GREEN, ":"),
    "plus": (BLUE, "-"),
    "ServerlessLLM": (ORANGE, ":"),
    "ServerlessLLM, slices": (ORANGE, "--"),
    "ServerlessLLM, 50 ms": (VERMILION, "-"),
    "Aegaeon": (PURPLE, "-"),
    "plus, planned": (BLUE, "--"),
    "ServerlessLLM, 50 ms, planned": (VERMILION, "--"),
    "Aegaeon, planned": (PURPLE, "--"),
}
TIE = "#B8B8B8"  # several systems within a point
PALE = 0.35  # opacity of a cell's colour
WITHIN = 95.0  # percent within targets that counts as served, against host memory


def draw_map(tables: Tables, caption: str) -> Figure:
    """Draw the best system of each workload; attainment over load and host memory."""
    chips = list(dict.fromkeys(r["chip"] for r in rows_of(tables["best"])))
    stored = [r for r in rows_of(tables["runs"]) if r["memory_gb"] is not None]
    columns, deep = 3 if stored else 2, len(chips) + 1
    figure, panels = canvas(1.0 + 3.8 * columns, 0.6 + 3.0 * deep, columns=columns, rows=deep)
    for row, chip in enumerate(chips):
        for column, bursts in enumerate(("steady", "bursty")):
            axes = panels[row * columns + column]
            _cells(axes, rows_of(tables["best"], chip=chip, bursts=bursts))
            axes.set_title(f"{chip}, {bursts} arrivals", fontsize=9.5)
        for axes in panels[row * columns + 2 : (row + 1) * columns]:
            axes.set_visible(False)
    below = panels[len(chips) * columns :]
    first = rows_of(tables["runs"], chip=chips[0], memory_gb=None)
    most = max(r["models"] for r in first if r["models"] <= 16)
    for axes, bursts in zip(below, ("steady", "bursty"), strict=False):
        _over_load(axes, [r for r in first if r["models"] == most and r["bursts"] == bursts])
        axes.set_title(f"{chips[0]}, {most} models, {bursts}", fontsize=9.5)
    if stored:
        _over_memory(below[2], stored)
        axes = below[2]
        axes.set_title(f"{chips[0]}, 1 request/s, bursty", fontsize=9.5)
    return finish(figure, "The best system for each workload", caption, below[0], 1 + columns)


def _cells(axes: Axes, best: list[dict[str, Any]]) -> None:
    models = sorted({b["models"] for b in best})
    rates = sorted({b["rate_rps"] for b in best})
    for b in best:
        x, y = rates.index(b["rate_rps"]), models.index(b["models"])
        axes.add_patch(_cell(x, y, LOOKS[b["best"]][0] if b["close"] == 1 else TIE))
        lost = b["paper_lead_points"] < -1.0
        axes.text(x, y + 0.12, f"{b['both_percent']:.0f}", ha="center", fontsize=8.5, color=INK)
        colour, weight = (VERMILION, "bold") if lost else (GREY, "normal")
        axes.text(x, y - 0.3, f"({b['paper_percent']:.0f})", ha="center", fontsize=7.5,
                  color=colour, fontweight=weight)  # fmt: skip
    axes.set(xlim=(-0.5, len(rates) - 0.5), ylim=(-0.5, len(models) - 0.5))
    axes.set_xticks(range(len(rates)), [f"{r:g}" for r in rates])
    axes.set_yticks(range(len(models)), [str(m) for m in models])
    axes.set(xlabel="requests/s", ylabel="models")
    axes.grid(visible=False)


def _cell(x: int, y: int, colour: str) -> Any:
    from matplotlib.patches import Rectangle

    return Rectangle((x - 0.5, y - 0.5), 1, 1, facecolor=colour, alpha=PALE, edgecolor="white")


def _over_load(axes: Axes, rows: list[dict[str, Any]]) -> None:
    for name, (colour, style) in LOOKS.items():
        mine = sorted((r for r in rows if r["system"] == name), key=lambda r: r["rate_rps"])
        if mine:
            rates, met = ([r[k] for r in mine] for k in ("rate_rps", "both_percent"))
            axes.plot(rates, met, style, color=colour, marker="o", markersize=3.5, label=name)
    axes.set_xscale("log", base=2)
    ticks = sorted({r["rate_rps"] for r in rows})
    axes.set_xticks(ticks, [f"{t:g}" for t in ticks])
    axes.set(xlabel="requests/s", ylabel="both targets met (%)", ylim=(0, 103))


def _over_memory(axes: Axes, rows: list[dict[str, Any]]) -> None:
    for name, (colour, style) in LOOKS.items():
        mine = [r for r in rows if r["system"] == name]
        sizes = sorted({r["memory_gb"] for r in mine})
        counts = [
            max((r["models"] for r in mine
                 if r["memory_gb"] == size and r["both_percent"] >= WITHIN), default=0)
            for size in sizes
        ]  # fmt: skip
        if mine:
            axes.plot(sizes, counts, linestyle=style, color=colour,
                      marker="o", markersize=3.5)  # fmt: skip
    axes.set(xlabel="host memory (GB)", ylabel=f"models with {WITHIN:g} % within targets")
    axes.set_xscale("log", base=2)
    ticks = sorted({r["memory_gb"] for r in rows})
    axes.set_xticks(ticks, [str(t) for t in ticks])
