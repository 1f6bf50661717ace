"""Figures 9 and 13, and public measurements beside ours."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.figures.style import (
    BLUE,
    GREEN,
    GREY,
    INK,
    ORANGE,
    PUBLISHED,
    SKY,
    VERMILION,
    Tables,
    beside,
    canvas,
    finish,
    rows_of,
)
from experiments.papers.c2cserve.drawing.serving import SHOWN

__all__ = ["draw_anchors", "draw_fig9", "draw_fig13", "draw_streaming"]

SHARE = 0.4  # of the free HBM, for the caches in (c) and (d)
MODELS = {
    "llama-3-3b": "Llama-3 3B",
    "llama-3-8b": "Llama-3 8B",
    "llama-3-70b": "Llama-3 70B",
    "qwen3-30b-a3b": "Qwen3-30B",
    "mixtral-8x7b": "Mixtral",
}
SHORT = {"dense6": "dense6", "qwen3-30b-a3b": "Qwen3-30B", "mixtral-8x7b": "Mixtral"}
CACHES = {
    "moe_infinity_code": "MoE-Infinity, public code",
    "moe_infinity": "MoE-Infinity",
    "finemoe": "FineMoE",
}
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
    for axes, metric, label in zip(
        panels, ("ttft_s", "tpot_s"), ("TTFT (s)", "TPOT (s)"), strict=True
    ):
        for system, (name, colour) in SHOWN.items():
            chosen = [r for r in rows if r["system"] == system and not r["out_of_memory"]]
            places = [beside(rows, r, 0.16) for r in chosen]
            axes.bar(places, [r[metric] for r in chosen], 0.15, color=colour, label=name)
            points = [(x, r[f"published_{metric}"]) for x, r in zip(places, chosen, strict=True)
                     if r[f"published_{metric}"] is not None]  # fmt: skip
            axes.plot([k[0] for k in points], [k[1] for k in points], **PUBLISHED)
        for r in rows:
            if r["out_of_memory"]:
                axes.text(beside(rows, r, 0.16), 0.02, "out of memory", rotation=90, fontsize=7,
                          ha="center", transform=axes.get_xaxis_transform())  # fmt: skip
        axes.set_yscale("log")
        axes.set_xticks(range(len(models)), [MODELS[m] for m in models], fontsize=8)
        axes.set(ylabel=label)
    panels[0].plot([], [], label="paper's ratio to C2CServe", **PUBLISHED)
    title = "C2CServe, Fig. 9: latency, one request at a time"
    return finish(figure, title, caption, panels[0], 6)


def draw_fig13(tables: Tables, caption: str) -> Figure:
    """Draw parts of TTFT with and without HybridGEMM, and any sweeps."""
    swept = "sizes" in tables and "routers" in tables
    figure = Figure(figsize=(7.6, 8.2 if swept else 5.0), layout="constrained")
    rows_of_panels: Any = [["turns"] * 2, ["misses"] * 2, *([["host", "routers"]] * swept)]
    panels = figure.subplot_mosaic(rows_of_panels, height_ratios=[1, 2.8, *([2] * swept)])
    turns, misses = panels["turns"], panels["misses"]
    rows = rows_of(tables["ttft"])
    of_turns = [r for r in rows if r["system"].startswith("aegaeon")]
    _draw_parts(turns, of_turns)
    turns.plot([r["p95_s"] for r in of_turns], range(len(of_turns)), "o", color=INK, markersize=5)
    turns.set_title("(a) Turns (dots and paper: p95)", fontsize=9.5)
    of_caches = [r for r in rows if not r["system"].startswith("aegaeon")]
    # bars with and without HybridGEMM are adjacent
    _draw_parts(misses, sorted(of_caches, key=lambda r: (_base(r), r["model"], r["host_for"] ==
                                                         "fetch", r["system"])))  # fmt: skip
    misses.set_title("(b) Caches of experts", fontsize=9.5)
    misses.plot([], [], label="paper (model not named)", **PUBLISHED)
    if swept:
        _draw_host(panels["host"], rows_of(tables["sizes"]))
        _draw_found(panels["routers"], rows_of(tables["routers"]))
    title = "C2CServe, Fig. 13: HybridGEMM in other systems"
    return finish(figure, title, caption, misses, 5)


def _base(row: dict[str, Any]) -> str:
    return str(row["system"]).removesuffix("_hybrid")


def _draw_parts(axes: Axes, rows: list[dict[str, Any]]) -> None:
    total = [sum(r[part] for part in PARTS) for r in rows]
    points = [(i, r["published_s"]) for i, r in enumerate(rows) if r["published_s"] is not None]
    base = [t - r["host_s"] for t, r in zip(total, rows, strict=True)]
    end = 1.12 * max([*base, *(r["p95_s"] - r["host_s"] for r in rows), *(k[1] for k in points)])
    bottom = np.zeros(len(rows))
    for part, (label, colour) in PARTS.items():
        values = np.minimum([r[part] for r in rows], end - bottom)
        axes.barh(range(len(rows)), values, 0.7, left=bottom, color=colour, label=label)
        bottom += values
    for i, seconds in enumerate(total):
        if seconds > end:
            axes.text(end, i, f" {seconds:.1f} s", va="center", fontsize=8, clip_on=False)
    axes.plot([k[1] for k in points], [k[0] for k in points], **PUBLISHED)
    axes.set_yticks(range(len(rows)), [_name(r) for r in rows], fontsize=8)
    axes.invert_yaxis()
    axes.grid(axis="x")
    axes.set(xlabel="TTFT (s)", xlim=(0.0, end))


def _name(row: dict[str, Any]) -> str:
    if row["system"].endswith("_hybrid"):
        return "+ HybridGEMM"
    return f"{SHOWN[_base(row)][0]}, {SHORT[row['model']]}{'*' * (row['host_for'] == 'fetch')}"


def _draw_host(axes: Axes, rows: list[dict[str, Any]]) -> None:
    models = dict.fromkeys(r["model"] for r in rows)
    for model, colour in zip(models, (BLUE, ORANGE, GREEN), strict=False):
        for system, style in (("moe_infinity", "-"), ("moe_infinity_hybrid", "--")):
            chosen = [r for r in rows if r["model"] == model and r["system"] == system
                      and r["share"] == SHARE]  # fmt: skip
            chosen.sort(key=lambda r: r["host_each_s"])
            plus = style == "--"
            axes.plot([1e3 * r["host_each_s"] for r in chosen], [r["ttft_s"] for r in chosen],
                      style, marker="o", markersize=3, label=None if plus else SHORT[model],
                      color=INK if plus else colour, linewidth=1.2 if plus else 2.6)  # fmt: skip
    axes.plot([], [], "--", color=INK, linewidth=1.2, label="+ HybridGEMM")
    axes.set_yscale("log")
    axes.set(xlabel="host's work for an expert (ms)", ylabel="TTFT (s)")
    axes.set_title(f"(c) MoE-Infinity, {100 * SHARE:.0f}% cached", fontsize=9.5)
    axes.legend(fontsize=7.5, loc="lower right")
    axes.set_ylim(bottom=0.02)


def _draw_found(axes: Axes, rows: list[dict[str, Any]]) -> None:
    routers = list(dict.fromkeys((r["skew"], r["locality"]) for r in rows))
    caches = list(dict.fromkeys(r["system"] for r in rows))
    for i, (cache, colour) in enumerate(zip(caches, (SKY, VERMILION, BLUE), strict=True)):
        chosen = {(r["skew"], r["locality"]): r for r in rows if r["system"] == cache}
        places = [j + 0.27 * (i - 1) for j in range(len(routers))]
        shares = [100 * chosen[router]["found_share"] for router in routers]
        bars = axes.bar(places, shares, 0.25, color=colour, label=CACHES[cache])
        axes.bar_label(bars, fmt="%.0f", padding=1, fontsize=7)
    axes.set_xticks(range(len(routers)), [f"{s:g}\n{p:g}" for s, p in routers])
    axes.set(xlabel="skew of the experts drawn\nlocality from token to token", ylim=(0, 119))
    axes.set(ylabel="experts found in HBM (%)")
    axes.set_title("(d) Mixtral, 40% cached", fontsize=9.5)
    axes.legend(fontsize=7.5, loc="upper left")


def draw_anchors(tables: Tables, caption: str) -> Figure:
    """Draw ratios of our to published numbers, a bar a measurement."""
    figure, (axes,) = canvas(8.4, 4.2)
    rows = rows_of(tables["anchors"])[::-1]
    colours = [BLUE if r["kind"] == "predicted" else GREY for r in rows]
    axes.barh(range(len(rows)), [r["ratio"] for r in rows], 0.6, color=colours)
    axes.axvline(1.0, color=VERMILION, linewidth=1.0)
    axes.set_yticks(range(len(rows)), [f"{r['what']} ({r['kind']})" for r in rows], fontsize=8)
    axes.set(xlabel="ours over published")
    return finish(figure, "Public measurements beside the simulator's", caption)


def draw_streaming(tables: Tables, caption: str) -> Figure:
    """Draw measured and computed time between tokens by run; whiskers: layouts."""
    rows = rows_of(tables["streaming"])
    runs = list(dict.fromkeys(r["run"] for r in rows))
    figure, panels = canvas(9.6, 4.2, columns=len(runs))
    for axes, run in zip(panels, runs, strict=True):
        here = [r for r in rows if r["run"] == run]
        models = list(dict.fromkeys(r["model"] for r in here))
        for place, model in enumerate(models):
            alike = [r for r in here if r["model"] == model]
            ours = [r["ours_ms"] for r in alike]
            middle = float(np.median(ours))
            axes.bar(
                place - 0.2, alike[0]["measured_ms"], 0.4, color=GREY, label="public prototype"
            )
            axes.bar(
                place + 0.2, middle, 0.4, color=BLUE, label="simulator",
                yerr=[[middle - min(ours)], [max(ours) - middle]], ecolor=INK, capsize=3,
            )  # fmt: skip
            text = f"{middle / alike[0]['measured_ms']:.2f}"
            axes.annotate(
                text, (place + 0.2, max(ours)), (0, 4), textcoords="offset points", ha="center",
                fontsize=8,
            )  # fmt: skip
        axes.set_xticks(range(len(models)), [m.removeprefix("qwen3-").upper() for m in models])
        axes.set(xlabel=f"Qwen3, {len(models)} at once", ylabel="time between tokens (ms)")
    return finish(figure, "Streamed decode beside a public prototype", caption, panels[0], 2)
