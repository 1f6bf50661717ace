"""Figures 9 and 13, and the public measurements beside the simulator's."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.figures.style import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    VERMILION,
    Tables,
    canvas,
    finish,
    rows_of,
)

__all__ = ["draw_anchors", "draw_fig9", "draw_fig13"]

SHOWN = {
    "c2cserve": ("C2CServe", BLUE),
    "serverlessllm": ("ServerlessLLM", ORANGE),
    "aegaeon": ("Aegaeon", GREEN),
    "moe_infinity": ("MoE-Infinity", GREY),
    "finemoe": ("FineMoE", VERMILION),
}
SHARE = 0.4  # of the HBM left, for the cache in (b)
PARTS = {
    "wait_s": ("waiting for a turn", GREY),
    "link_s": ("link", BLUE),
    "hbm_s": ("HBM and compute", GREEN),
    "host_s": ("host", ORANGE),
}


def draw_fig9(tables: Tables, caption: str) -> Figure:
    """Draw TTFT and TPOT of each model on each system."""
    figure, panels = canvas(10.8, 4.6, columns=2)
    rows = rows_of(tables["latency"])
    models = list(dict.fromkeys(r["model"] for r in rows))
    for axes, what, label in zip(
        panels, ("ttft_s", "tpot_s"), ("TTFT (s)", "TPOT (s)"), strict=True
    ):
        for system, (name, colour) in SHOWN.items():
            chosen = [r for r in rows if r["system"] == system and not r["out_of_memory"]]
            at = [models.index(r["model"]) + 0.16 * (list(SHOWN).index(system) - 2) for r in chosen]
            axes.bar(at, [r[what] for r in chosen], 0.15, color=colour, label=name)
        for r in rows:
            if r["out_of_memory"]:
                x = models.index(r["model"]) + 0.16 * (list(SHOWN).index(r["system"]) - 2)
                axes.text(x, 0.02, "out of memory", rotation=90, fontsize=7, ha="center",
                          transform=axes.get_xaxis_transform())  # fmt: skip
        axes.set_yscale("log")
        axes.set_xticks(range(len(models)), models, rotation=20, ha="right", fontsize=8)
        axes.set(ylabel=label)
    panels[0].legend(loc="upper left", fontsize=8)
    return finish(figure, "Fig. 9: average latency, one request at a time", caption)


def draw_fig13(tables: Tables, caption: str) -> Figure:
    """Draw TTFT with and without HybridGEMM by its parts, and over the cache's size."""
    figure, (turns, misses, right) = canvas(12.6, 5.6, columns=3, width_ratios=[0.7, 1.3, 1.0])
    rows = rows_of(tables["ttft"])
    _draw_parts(turns, [r for r in rows if r["system"].startswith("aegaeon")])
    turns.set_title("(a) Engines that take turns", fontsize=9.5)
    _draw_parts(misses, [r for r in rows if not r["system"].startswith("aegaeon")])
    misses.set_xscale("symlog", linthresh=0.5)
    misses.set_xticks([0.0, 0.1, 0.2, 0.3, 0.4, 1.0, 6.0], ["0", "", ".2", "", ".4", "1", "6"])
    misses.set_title("(b) Caches of experts", fontsize=9.5)
    figure.legend(*turns.get_legend_handles_labels(), loc="outside right upper")
    sizes = rows_of(tables["sizes"])
    for model in dict.fromkeys(r["model"] for r in sizes):
        for system, style in (("moe_infinity", "-"), ("moe_infinity_hybrid", "--")):
            chosen = [r for r in sizes if r["model"] == model and r["system"] == system
                      and r["share"] == SHARE]  # fmt: skip
            chosen.sort(key=lambda r: r["host_each_s"])
            label = f"{model}{' + HybridGEMM' if style == '--' else ''}"
            right.plot([1e3 * r["host_each_s"] for r in chosen], [r["ttft_s"] for r in chosen],
                       style, marker="o", markersize=3, label=label)  # fmt: skip
    right.set_yscale("log")
    right.set(xlabel="host's work for an expert (ms)", ylabel="TTFT (s)")
    right.set_title(f"(c) MoE-Infinity, {100 * SHARE:.0f}% cached", fontsize=9.5)
    right.legend(fontsize=7.5)
    return finish(figure, "Fig. 13: HybridGEMM in other systems", caption)


def _draw_parts(axes: Axes, rows: list[dict[str, Any]]) -> None:
    """Draw a bar of parts for each row."""
    bottom = np.zeros(len(rows))
    for part, (label, colour) in PARTS.items():
        values = np.array([r[part] for r in rows])
        axes.barh(range(len(rows)), values, 0.7, left=bottom, color=colour, label=label)
        bottom += values
    axes.set_yticks(range(len(rows)), [_name(r) for r in rows], fontsize=7.5)
    axes.invert_yaxis()
    axes.grid(axis="x")
    axes.set(xlabel="TTFT (s)")


def _name(row: dict[str, Any]) -> str:
    base = row["system"].removesuffix("_hybrid")
    plus = " + HybridGEMM" if row["system"].endswith("_hybrid") else ""
    of_fetch = ", host works a fetch" if row["host_for"] == "fetch" else ""
    return f"{SHOWN[base][0]}{plus}\n{row['model']}{of_fetch}"


def draw_anchors(tables: Tables, caption: str) -> Figure:
    """Draw our number over the published one, a line a measurement."""
    figure, (axes,) = canvas(8.4, 4.2)
    rows = rows_of(tables["anchors"])[::-1]
    colours = [BLUE if r["kind"] == "predicted" else GREY for r in rows]
    axes.barh(range(len(rows)), [r["ratio"] for r in rows], 0.6, color=colours)
    axes.axvline(1.0, color=VERMILION, linewidth=1.0)
    axes.set_yticks(range(len(rows)), [f"{r['what']} ({r['kind']})" for r in rows], fontsize=8)
    axes.set(xlabel="ours over published")
    return finish(figure, "Public measurements beside the simulator's", caption)
