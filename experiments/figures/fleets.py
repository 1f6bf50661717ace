"""Figures of fleets with more models than slices, of the parts of plus, and of one hot model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

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

__all__ = ["draw_ablation_plus", "draw_fleets", "draw_one_service"]

LINES: dict[str, tuple[str, str]] = {
    "plus": (BLUE, "-"),
    "plus, 4x24gb": (BLUE, "--"),
    "plus, nothing kept": (SKY, "-"),
    "c2cserve": (GREEN, "-"),
    "letter": (GREEN, ":"),
    "ServerlessLLM, 4x24gb, 50 ms": (ORANGE, "-"),
    "ServerlessLLM, 4x24gb": (ORANGE, "--"),
    "ServerlessLLM, whole GPU": (ORANGE, ":"),
    "layer staging": (PURPLE, "-"),
}
FEWEST_PERCENT = 0.01  # lower end of the axis of missed requests; 0 is drawn on it
LEAST_S = 0.02  # lower end of the axis of TTFT
OWN_DRAW = "own"  # the slice's own draw, not capped


def draw_fleets(tables: Tables, caption: str) -> Figure:
    """Draw missed targets and p99 TTFT over the number of models, and over a slice's link rate."""
    rows = rows_of(tables["systems"])
    loads = sorted({r["compression"] for r in rows})
    caps = sorted({r["draw_gbps"] for r in rows if r["draw_gbps"] is not None})
    columns = len(loads) + bool(caps)
    figure, panels = canvas(
        4.0 * columns + 2.0, 6.4, rows=2, columns=columns, sharex="col", sharey="row"
    )
    for column, load in enumerate(loads):
        chosen = [r for r in rows if r["compression"] == load and r["draw_gbps"] is None]
        _pair(panels, column, columns, chosen, "models", sorted({r["models"] for r in chosen}))
        panels[column].set_title(f"Compression {load:g}", fontsize=9.5)
        panels[columns + column].set(xlabel="models")
    if caps:
        at = {(r["compression"], r["models"]) for r in rows if r["draw_gbps"] is not None}
        chosen = [
            {**r, "draw_gbps": r["draw_gbps"] or OWN_DRAW}
            for r in rows
            if (r["compression"], r["models"]) in at
        ]
        _pair(panels, columns - 1, columns, chosen, "draw_gbps", [*caps, OWN_DRAW])
        load, models = next(iter(at))
        panels[columns - 1].set_title(f"{models} models, compression {load:g}", fontsize=9.5)
        panels[-1].set(xlabel="a slice's draw from the link (GB/s)")
    panels[0].set(ylabel=f"requests off target (%; none: {FEWEST_PERCENT:g})")
    panels[0].set(yscale="log", ylim=(0.8 * FEWEST_PERCENT, 100.0))
    highest = max(r["ttft_p99_s"] for r in rows)
    panels[columns].set(ylabel="p99 TTFT (s)", yscale="log", ylim=(LEAST_S, 2.0 * highest))
    return finish(figure, "More models than slices", caption, panels[0], max(2, columns))


def _pair(
    panels: Sequence[Axes],
    column: int,
    columns: int,
    rows: Sequence[dict[str, Any]],
    over: str,
    values: Sequence[Any],
) -> None:
    """Draw both panels of a column: one line for each system over the values of a setting."""
    top, below = panels[column], panels[columns + column]
    for order, (name, (colour, style)) in enumerate(LINES.items()):
        # the first lines are on top; lines below them are wider
        look: dict[str, Any] = {
            "color": colour, "linestyle": style, "label": name, "zorder": 3.0 - 0.01 * order,
        }  # fmt: skip
        width = 1.8 if colour != PURPLE else 4.5
        found = {r[over]: r for r in rows if r["system"] == name}
        at = [k for k, value in enumerate(values) if value in found]
        if not at:
            continue
        here = [found[values[k]] for k in at]
        missed = [max(FEWEST_PERCENT, 100.0 - r["both_percent"]) for r in here]
        late = [max(LEAST_S, r["ttft_p99_s"]) for r in here]
        for axes, y in ((top, missed), (below, late)):
            axes.plot(at, y, marker="o", markersize=3.5, linewidth=width, **look)
    below.set_xticks(range(len(values)), [v if isinstance(v, str) else f"{v:g}" for v in values])
    below.axhline(1.0, color=VERMILION, linestyle=":", linewidth=1.2)


def draw_ablation_plus(tables: Tables, caption: str) -> Figure:
    """Draw attainment and p99 TTFT of each variant, one column of panels for each load."""
    rows = rows_of(tables["ablations"])
    points = list(dict.fromkeys(r["point"] for r in rows))
    variants = list(dict.fromkeys(r["variant"] for r in rows))
    figure, panels = canvas(
        3.6 * 2 * len(points) + 2.0, 0.3 * len(variants) + 2.6, columns=2 * len(points), sharey=True
    )
    y = np.arange(len(variants))
    for k, point in enumerate(points):
        chosen = [r for r in rows if r["point"] == point]
        _spread(panels[2 * k], chosen, variants, "both_percent")
        panels[2 * k].set_title(point, fontsize=9.5)
        least = min(r["both_percent"] for r in chosen)
        panels[2 * k].set(xlabel="both targets met (%)", xlim=(min(99.0, least - 0.5), 100.1))
        _spread(panels[2 * k + 1], chosen, variants, "ttft_p99_s")
        panels[2 * k + 1].set(xlabel="p99 TTFT (s)", xscale="log")
        panels[2 * k + 1].xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        panels[2 * k + 1].xaxis.set_major_formatter("{x:g}")
        panels[2 * k + 1].xaxis.set_minor_formatter(NullFormatter())
    panels[0].set_yticks(y, variants)
    panels[0].invert_yaxis()
    for axes in panels:
        axes.grid(visible=True, axis="x")
    return finish(figure, "Worth of each part of plus", caption)


def _spread(
    axes: Axes, rows: Sequence[dict[str, Any]], variants: Sequence[str], column: str
) -> None:
    """Mark each variant's mean and range over seeds; a line marks the whole system."""
    for at, name in enumerate(variants):
        values = [r[column] for r in rows if r["variant"] == name]
        if not values:
            continue  # not asked for at this load
        colour = BLUE if at == 0 else GREY
        axes.plot([min(values), max(values)], [at, at], color=INK, linewidth=1.2)
        axes.plot(float(np.mean(values)), at, "o", color=colour, markersize=6)
        if at == 0:
            axes.axvline(float(np.mean(values)), color=BLUE, linestyle=":", linewidth=1.0)


def draw_one_service(tables: Tables, caption: str) -> Figure:
    """Draw TTFT percentiles and attainment of one hot model, as groups of bars by setting."""
    rows = rows_of(tables["services"])
    settings = list(dict.fromkeys(r["setting"] for r in rows))
    systems = list(dict.fromkeys(r["system"] for r in rows))
    figure, (left, right) = canvas(9.0, 4.2, columns=2)
    width = 0.8 / len(systems)
    for k, system in enumerate(systems):
        first = rows[0]["seed"]
        chosen = {r["setting"]: r for r in rows if (r["system"], r["seed"]) == (system, first)}
        x = np.arange(len(settings)) + (k - (len(systems) - 1) / 2) * width
        colour = LINES[system][0] if system != "letter" else GREY
        here = [chosen[s] for s in settings]
        left.bar(x, [r["ttft_p50_s"] for r in here], 0.92 * width, color=colour, label=system)
        left.vlines(x, [r["ttft_p50_s"] for r in here], [r["ttft_p99_s"] for r in here],
                    color=INK, linewidth=1.2)  # fmt: skip
        bars = right.bar(x, [r["both_percent"] for r in here], 0.92 * width, color=colour)
        right.bar_label(bars, [f"{r['slices_used']} of {r['slices']}" for r in here],
                        padding=2, fontsize=7)  # fmt: skip
    left.set(ylabel="TTFT (s): bar p50, line to p99", yscale="log")
    left.axhline(1.0, color=VERMILION, linestyle=":", linewidth=1.2)
    right.set(ylabel="both targets met (%)", ylim=(0, 108))
    right.set_title("Above the bars: slices that worked", fontsize=9.5)
    for axes in (left, right):
        axes.set_xticks(range(len(settings)), settings, fontsize=8.5)
    return finish(figure, "One service on all slices", caption, left)
