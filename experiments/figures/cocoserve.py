"""CoCoServe's figures: gains by copies of layers, costs of operations."""

from __future__ import annotations

from matplotlib.figure import Figure

from experiments.claims import claim
from experiments.figures.style import (
    BLUE,
    ORANGE,
    PUBLISHED,
    VERMILION,
    Tables,
    canvas,
    finish,
    rows_of,
)

__all__ = ["draw_costs", "draw_gains"]


def draw_gains(tables: Tables, caption: str) -> Figure:
    """Draw gains of throughput and cuts of latency by layers, and by copies of twenty layers."""
    figure, axes = canvas(10.0, 6.4, 2, 2)
    rows = rows_of(tables["gains"])
    titles = {
        "throughput_gain_percent": "throughput, gain (%)",
        "latency_cut_percent": "latency, cut (%)",
    }
    for column, (name, title) in enumerate(titles.items()):
        by_layers, by_copies = axes[column], axes[2 + column]
        for load, colour in (("low", ORANGE), ("peak", BLUE)):
            mine = [r for r in rows if r["load"] == load]
            two = sorted((r["layers"], r[name]) for r in mine if r["copies"] <= 2)
            some = sorted([(1, 0.0), *((r["copies"], r[name]) for r in mine if r["layers"] == 20)])
            for each, points in ((by_layers, two), (by_copies, some)):
                x, y = zip(*points, strict=True)
                each.plot(x, y, marker="o", color=colour, label=f"{load}, ours")
        by_layers.set_xlabel("layers with two copies")
        by_copies.set_xlabel("copies of 20 layers")
        by_copies.set_xticks([1, 2, 3, 4])
        for each in (by_layers, by_copies):
            each.set_ylabel(title)
    gains = {n: claim(f"cocoserve.fig6a.rep{n}").value for n in (20, 25, 30)}
    four = claim("cocoserve.fig6c.dop4_peak").value
    for each, printed in ((axes[0], gains), (axes[2], {4: four})):
        each.plot([*printed], [*printed.values()], **PUBLISHED, label="peak, printed")
        each.legend()
    return finish(figure, "Copies of layers: throughput and latency", caption)


def draw_costs(tables: Tables, caption: str) -> Figure:
    """Draw seconds and memory of operations by layers, beside what is printed."""
    figure, (left, right) = canvas(9.0, 3.8, 2)
    rows = rows_of(tables["operations"])
    for kind, colour in (("replicate", BLUE), ("migrate", VERMILION)):
        mine = [r for r in rows if r["kind"] == kind]
        layers = [r["layers"] for r in mine]
        left.plot(
            layers, [r["seconds"] for r in mine], marker="o", color=colour, label=f"{kind}, ours"
        )
        left.plot(
            layers, [r["printed_s"] for r in mine],
            **{**PUBLISHED, "markeredgecolor": colour}, label=f"{kind}, printed",
        )  # fmt: skip
    mine = [r for r in rows if r["kind"] == "migrate"]
    layers = [r["layers"] for r in mine]
    right.plot(layers, [r["memory_mb"] / 1024 for r in mine], marker="o", color=BLUE, label="ours")
    right.plot(layers, [r["printed_mb"] / 1024 for r in mine], **PUBLISHED, label="printed")
    for axes, title in ((left, "seconds"), (right, "memory (GiB)")):
        axes.set_xlabel("layers")
        axes.set_ylabel(title)
        axes.set_ylim(bottom=0)
        axes.legend()
    return finish(figure, "Operations on layers: time and memory", caption)
