"""Serving figures: cold start and switch (Figs. 10, 11), trace replay (12), ablations (14)."""

from __future__ import annotations

from itertools import cycle
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.claims import claim
from experiments.figures.style import (
    BLUE,
    COLOURS,
    GREEN,
    GREY,
    INK,
    ORANGE,
    PURPLE,
    VERMILION,
    Tables,
    beside,
    canvas,
    finish,
    mark_published,
    rows_of,
)

__all__ = ["draw_fig10", "draw_fig11", "draw_fig12", "draw_fig14"]

SHOWN = {
    "c2cserve": ("C2CServe", GREEN),
    "serverlessllm": ("ServerlessLLM", ORANGE),
    "aegaeon": ("Aegaeon", PURPLE),
    "moe_infinity": ("MoE-Infinity", VERMILION),
    "finemoe": ("FineMoE", BLUE),
}
LEAST_SAID = 99.5  # percent within the TPOT target; more is not written
TALLEST = 1.25  # of the axes of Fig. 14, times the largest printed number
MODELS = {
    "llama-3-3b": "Llama-3 3B",
    "llama-3-8b": "Llama-3 8B",
    "qwen3-30b-a3b": "Qwen3-30B-A3B",
    "mixtral-8x7b": "Mixtral-8x7B",
}

OWN_READINGS = {  # panel -> title, for other readings of the paper
    "placement, unlike slices": "(d) Unlike slices",
    "chunk, long prompts": "(e) Long prompts, chunk size (tokens)",
}


def draw_fig10(tables: Tables, caption: str) -> Figure:
    """Draw cold-start latency in parts, and the speed-up."""
    figure, (axes,) = canvas(8.4, 4.6)
    models = list(dict.fromkeys(tables["cold"]["model"].to_pylist()))
    x = np.arange(len(models))
    rows = rows_of(tables["cold"])
    for system, (label, colour) in SHOWN.items():
        chosen = [r for r in rows if r["system"] == system]
        places = [beside(rows, r, 0.2) for r in chosen]
        bars = axes.bar(places, [r["ttft_s"] for r in chosen], 0.18, color=colour, label=label)
        axes.bar_label(bars, fmt="%.1f", padding=2, fontsize=7)
    axes.set_yscale("log")
    names = []
    for r in rows_of(tables["speedup"]):
        paper = f"\npaper {r['published']}×" if r["published"] else "\n(not printed)"
        names.append(f"{MODELS[r['model']]}\n{r['speedup']:.2f}×{paper}")
    axes.set_xticks(x, names)
    axes.set(ylabel="arrival to first token (s)")
    axes.margins(y=0.12)
    axes.set_title("Cold start from disk; below: speed-up over ServerlessLLM")
    return finish(figure, "C2CServe, Fig. 10: cold start", caption, axes, 5)


def draw_fig11(tables: Tables, caption: str) -> Figure:
    """Draw switch latency on a logarithmic axis."""
    figure, (axes,) = canvas(8.4, 4.4)
    rows = rows_of(tables["switch"])
    models = list(dict.fromkeys(r["model"] for r in rows))
    x = np.arange(len(models))
    for system, (label, colour) in SHOWN.items():
        chosen = [r for r in rows if r["system"] == system]
        places = [beside(rows, r, 0.2) for r in chosen]
        axes.bar(places, [r["switch_ms"] for r in chosen], 0.18, color=colour, label=label)
        for where, r in zip(places, chosen, strict=True):
            top = max(r["switch_ms"], r["published_ms"] or 0.0)  # above the bar and its mark
            axes.annotate(_switch_text(r["switch_ms"]), (where, top), (0, 7), ha="center",
                          textcoords="offset points", fontsize=7)  # fmt: skip
        points = [(x, r["published_ms"]) for x, r in zip(places, chosen, strict=True)
                 if r["published_ms"] is not None]  # fmt: skip
        text = "paper (fitted to, but Aegaeon's)" if system == "c2cserve" else "_paper"
        mark_published(axes, [k[0] for k in points], [k[1] for k in points], text)
    axes.set_yscale("log")
    axes.set_xticks(x, [MODELS[m] for m in models])
    axes.set(ylabel="switch (ms)", ylim=(10, 1e6))
    axes.set_title("Model switch on a warm slice")
    return finish(figure, "C2CServe, Fig. 11: model switch", caption, axes, 3)


def _switch_text(switch_ms: float) -> str:
    return f"{switch_ms:.0f} ms" if switch_ms < 1e3 else f"{switch_ms / 1e3:.3g} s"


# System -> colour, dash, claim with the printed band.
REPLAYED = {
    "C2CServe": (GREEN, "-", "c2cserve.fig12.dense.c2cserve.ttft"),
    "ServerlessLLM": (ORANGE, "-", "c2cserve.fig12.dense.sllm.ttft"),
    "Aegaeon": (PURPLE, "-", "c2cserve.fig12.dense.aegaeon.ttft"),
    "C2CServe to the letter": (GREEN, "--", None),
    "plus": (BLUE, "-", None),
}


def draw_fig12(tables: Tables, caption: str) -> Figure:
    """Draw requests over time, shares by TTFT, and our bands beside the printed."""
    summary = rows_of(tables["summary"])
    systems = list(dict.fromkeys(r["system"] for r in summary))
    figure, (load, curves, bands) = canvas(
        9.4, 5.8 + 0.2 * len(systems), rows=3,
        gridspec_kw={"height_ratios": [1, 3.4, 0.4 + 0.32 * len(systems)]},
    )  # fmt: skip
    first = [r for r in rows_of(tables["windows"])
             if (r["system"], r["seed"]) == (systems[0], summary[0]["seed"])]  # fmt: skip
    load.bar(
        [r["start_h"] for r in first], [r["requests"] / (3600 * r["hours"]) for r in first],
        [r["hours"] for r in first], color=GREY, align="edge",
    )  # fmt: skip
    load.set(ylabel="requests/s", xlabel="hours of the compressed trace")
    load.set_title("(a) Load", fontsize=9.5)
    other = dict(zip(systems, cycle(COLOURS), strict=False))
    for place, system in enumerate(systems):
        colour, dash, claim_id = REPLAYED.get(system, (other[system], "-", None))
        _ttft_curve(curves, rows_of(tables["ttft"], system=system), colour, dash, system)
        mine = [r for r in summary if r["system"] == system]
        low, high = (
            float(np.median([r[column] for r in mine])) for column in ("curve_p5_s", "curve_p95_s")
        )
        bands.plot([low, high], [place + 0.15, place + 0.15], dash, color=colour, linewidth=5,
                   solid_capstyle="butt")  # fmt: skip
        if claim_id:
            published = claim(claim_id).value
            bands.plot(published, [place - 0.18] * 2, color=INK, linewidth=1, marker="D",
                       markersize=5, markerfacecolor="none",
                       label="paper" if place == 0 else None)  # fmt: skip
    curves.axvline(1.0, color=VERMILION, linestyle=":", linewidth=1.2)
    curves.annotate("target", (1.0, 4), (4, 0), textcoords="offset points", color=VERMILION)
    curves.set(xscale="log", ylim=(0, 101), ylabel="requests served (%)")
    curves.set_title("(b) TTFT of requests", fontsize=9.5)
    curves.legend(loc="lower right")
    bands.set(xscale="log", xlabel="TTFT (s)", ylim=(len(systems) - 0.5, -0.5))
    bands.set_yticks(range(len(systems)), systems)
    bands.grid(visible=True, axis="x")
    bands.set_title("(c) p95 of windows, p5 to p95", fontsize=9.5)
    bands.legend(loc="best")
    shown = [*curves.get_xlim(), *bands.get_xlim()]
    for axes in (curves, bands):
        axes.set_xlim(min(shown), max(shown))
    return finish(figure, "C2CServe, Fig. 12: trace replay, dense models", caption)


def _ttft_curve(
    axes: Axes, rows: list[dict[str, Any]], colour: str, dash: str, system: str
) -> None:
    seeds = sorted({r["seed"] for r in rows})
    values = np.array([[r["ttft_s"] for r in rows if r["seed"] == seed] for seed in seeds])
    percents = [r["percent"] for r in rows if r["seed"] == seeds[0]]
    shown = np.where(np.isfinite(values), values, np.nan)
    axes.plot(np.median(shown, axis=0), percents, dash, color=colour, label=system, linewidth=1.6)
    axes.fill_betweenx(percents, shown.min(axis=0), shown.max(axis=0), color=colour, alpha=0.25,
                       linewidth=0)  # fmt: skip


def draw_fig14(tables: Tables, caption: str) -> Figure:
    """Draw p99 TTFT of variants, a panel a component; below, our readings."""
    rows = rows_of(tables["ablations"])
    more = any(r["panel"] in OWN_READINGS for r in rows)
    figure, panels = canvas(
        10.8, 8.6 if more else 4.9, rows=2 if more else 1, columns=3,
        width_ratios=[1.1, 2.2, 2.1],
    )  # fmt: skip
    titles = {
        "placement": "(a) Placement, four chips",
        "chunk": "(b) Chunk size (tokens)",
        "alpha": "(c) HybridGEMM's α",
    }
    printed = [r["published_p99_s"] for r in rows if r["published_p99_s"] is not None]
    for axes in panels[:3]:
        axes.set_ylim(0.0, TALLEST * max(printed))
        axes.tick_params(labelleft=axes is panels[0])
    for axes, panel in zip(panels[3:], OWN_READINGS, strict=False):
        times_s = [r["ttft_p99_s"] for r in rows if r["panel"] == panel]
        axes.set(ylim=(0.0, TALLEST * max(times_s, default=1.0)), ylabel="p99 TTFT (s)")
    for axes, (panel, title) in zip(panels[:3], titles.items(), strict=True):
        _ablation(axes, rows, panel, title, whole=panel != "placement")
    for axes, (panel, title) in zip(panels[3:], OWN_READINGS.items(), strict=False):
        _ablation(axes, rows, panel, title, whole=False)
    for axes in panels[3 + len(OWN_READINGS) :]:
        times_s = [r["ttft_p99_s"] for r in rows if r["panel"] == "all"]
        axes.set(ylim=(0.0, TALLEST * max(times_s, default=1.0)), ylabel="p99 TTFT (s)")
        _ablation(axes, rows, "all", "(f) Beside the full system", whole=False)
    panels[0].set(ylabel="p99 TTFT (s)")
    panels[0].plot([], [], color=INK, linewidth=1.2, label="range over seeds")
    title = "C2CServe, Fig. 14: worth of each component"
    return finish(figure, title, caption, panels[0], columns=2)


def _ablation(axes: Axes, rows: list[dict[str, Any]], panel: str, title: str, whole: bool) -> None:
    names = list(dict.fromkeys(r["variant"] for r in rows if r["panel"] == panel))
    if whole:
        names.insert(0, "full system")
    shown: list[str] = []
    for place, name in enumerate(names):
        where = "all" if name == "full system" else panel
        chosen = [r for r in rows if r["panel"] == where and r["variant"] == name]
        _bar(axes, place, chosen, _colour(name))
        tpot = float(np.median([r["tpot_attainment_percent"] for r in chosen]))
        shown.append(f"{_short(name, panel)}" + f"\nTPOT {tpot:.0f}%" * (tpot < LEAST_SAID))
    axes.set_xticks(range(len(names)), shown, fontsize=8)
    axes.set_title(title, fontsize=9.5)


def _short(name: str, panel: str) -> str:
    panel_names = {"chunk": "table", "alpha": "feedback"}
    shown = panel_names.get(panel, name) if name == "full system" else name
    return shown.replace(" ", "\n")


def _colour(name: str) -> str:
    if name in {"full system", "bandwidth aware", "table"}:
        return GREEN
    return BLUE if "ours" in name else GREY


def _bar(axes: Axes, x: int, rows: list[dict[str, Any]], colour: str) -> None:
    values = [r["ttft_p99_s"] for r in rows]
    middle = float(np.median(values))
    axes.bar(x, middle, 0.62, color=colour)
    axes.plot([x, x], [min(values), max(values)], color=INK, linewidth=1.2)
    # our number is above its bar, or above the paper's mark if that is in the way
    printed = rows[0]["published_p99_s"]
    highest = axes.get_ylim()[1]
    leaves = max(values) > highest  # the whisker leaves the axes; its number is beside it
    top = middle if leaves else min(max(values), 0.9 * highest)
    if printed is not None and abs(printed - top) < 0.15:
        top = max(top, printed)
    axes.annotate(
        f"{middle:.2f}\nto {max(values):.1f} ↑" if leaves else f"{middle:.2f}",
        (x, top),
        xytext=(-4 if leaves else 0, 4 if leaves else 7),
        textcoords="offset points",
        ha="right" if leaves else "center",
        fontsize=8,
        visible=middle <= highest,
    )
    # a bar that leaves the axes has a mark at their top
    axes.text(
        x, 0.97, f"{middle:.1f} ↑", ha="center", va="top", fontsize=8, color="white",
        transform=axes.get_xaxis_transform(), visible=middle > highest,
    )  # fmt: skip
    if rows[0]["published_p99_s"] is not None:
        mark_published(axes, [x], [rows[0]["published_p99_s"]])
