"""Figures of mechanisms, alone and together."""

from __future__ import annotations

from matplotlib.figure import Figure

from experiments.figures.style import (
    BLUE,
    GREEN,
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

__all__ = ["draw_pairs", "draw_worth"]

COLOURS = (GREEN, BLUE, PURPLE, ORANGE, VERMILION, SKY)


def draw_worth(tables: Tables, caption: str) -> Figure:
    """Draw mechanisms' Shapley values over load, by fleet and kind."""
    rows = rows_of(tables["shares"])
    cells = list(dict.fromkeys((r["fleet"], r["bursts"]) for r in rows))
    columns = min(3, len(cells))
    lines = -(-len(cells) // columns)
    names = list(dict.fromkeys(r["mechanism"] for r in rows))
    width = 0.8 / len(names)
    most = max(len({r["rate_rps"] for r in rows if (r["fleet"], r["bursts"]) == c}) for c in cells)
    figure, panels = canvas(
        4.6 * columns, 1.2 + 2.8 * lines, columns=columns, rows=lines, sharey=True
    )
    for axes in panels[len(cells) :]:
        axes.set_axis_off()
    for place, (axes, cell) in enumerate(zip(panels, cells, strict=False)):
        here = [r for r in rows if (r["fleet"], r["bursts"]) == cell]
        rates = sorted({r["rate_rps"] for r in here})
        for k, name in enumerate(names):
            mine = sorted((r for r in here if r["mechanism"] == name), key=lambda r: r["rate_rps"])
            if not mine:  # it does nothing under these arrivals
                continue
            places = [x + (k - (len(names) - 1) / 2) * width for x in range(len(rates))]
            axes.bar(
                places, [r["points"] for r in mine], width=width, color=COLOURS[k % len(COLOURS)],
                yerr=[r["half"] or 0.0 for r in mine], error_kw={"linewidth": 0.8, "ecolor": INK},
                label=name,
            )  # fmt: skip
        axes.axhline(0.0, color=INK, linewidth=0.6)
        axes.set_xlim(-0.6, most - 0.4)  # so that bars are equally wide in all panels
        axes.set_xticks(range(len(rates)), [f"{rate:g}" for rate in rates])
        axes.set_title(", ".join(cell), fontsize=9.5)
        if place % columns == 0:
            axes.set_ylabel("points of attainment")
        if place + columns >= len(cells):
            axes.set_xlabel("requests/s a chip")
    named = max(panels, key=lambda axes: len(axes.get_legend_handles_labels()[1]))
    return finish(figure, "Worth of each mechanism, alone and together", caption, named, 6)


def draw_pairs(tables: Tables, caption: str) -> Figure:
    """Draw attainment over the rate, a panel a pair."""
    rows = rows_of(tables["pairs"])
    pairs = list(dict.fromkeys(r["pair"] for r in rows))
    lines = -(-len(pairs) // 4)
    figure, panels = canvas(15.0, 1.2 + 3.2 * lines, columns=4, rows=lines, sharey=True)
    for axes in panels[len(pairs) :]:
        axes.set_axis_off()
    for place, (axes, pair) in enumerate(zip(panels, pairs, strict=False)):
        here = [r for r in rows if r["pair"] == pair]
        rates = sorted({r["rate_rps"] for r in here})
        for k, system in enumerate(dict.fromkeys(r["system"] for r in here)):
            mine = [r for r in here if r["system"] == system]
            by_rate = [[r["both_percent"] for r in mine if r["rate_rps"] == rate] for rate in rates]
            axes.plot(
                rates, [sum(values) / len(values) for values in by_rate], marker="o", markersize=3,
                color=COLOURS[k], linewidth=2.4 if k == 0 else 1.2, label=system,
            )  # fmt: skip
        axes.set_title(pair, fontsize=9.5)
        axes.legend(fontsize=7.5, frameon=False, loc="best")
        axes.set_ylim(-3, 103)
        if place % 4 == 0:
            axes.set_ylabel("% within both targets")
        axes.set_xlabel("requests/s of the node")
    return finish(figure, "Mechanisms in pairs, against each alone", caption)
