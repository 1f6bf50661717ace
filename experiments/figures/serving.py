"""Serving figures: cold start and switch (Figs. 10, 11), trace replay (12), ablations (14)."""

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
SHOWN_HOURS = 40.0  # of the trace replay
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
    """Draw cold-start latency, split into start and first token, and the speed-up."""
    figure, (axes,) = canvas(8.4, 4.6)
    models = list(dict.fromkeys(tables["cold"]["model"].to_pylist()))
    x = np.arange(len(models))
    rows = rows_of(tables["cold"])
    for system, (label, colour) in SHOWN.items():
        chosen = [r for r in rows if r["system"] == system]
        at = [beside(rows, r, 0.2) for r in chosen]
        bars = axes.bar(at, [r["ttft_s"] for r in chosen], 0.18, color=colour, label=label)
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
        at = [beside(rows, r, 0.2) for r in chosen]
        axes.bar(at, [r["switch_ms"] for r in chosen], 0.18, color=colour, label=label)
        for where, r in zip(at, chosen, strict=True):
            top = max(r["switch_ms"], r["published_ms"] or 0.0)  # above the bar and its mark
            axes.annotate(_switch_text(r["switch_ms"]), (where, top), (0, 7), ha="center",
                          textcoords="offset points", fontsize=7)  # fmt: skip
        known = [(x, r["published_ms"]) for x, r in zip(at, chosen, strict=True)
                 if r["published_ms"] is not None]  # fmt: skip
        text = "paper (fitted to, but Aegaeon's)" if system == "c2cserve" else "_paper"
        mark_published(axes, [k[0] for k in known], [k[1] for k in known], text)
    axes.set_yscale("log")
    axes.set_xticks(x, [MODELS[m] for m in models])
    axes.set(ylabel="switch (ms)", ylim=(10, 1e6))
    axes.set_title("Model switch on a warm slice")
    return finish(figure, "C2CServe, Fig. 11: model switch", caption, axes, 3)


def _switch_text(switch_ms: float) -> str:
    return f"{switch_ms:.0f} ms" if switch_ms < 1e3 else f"{switch_ms / 1e3:.3g} s"


def draw_fig12(tables: Tables, caption: str) -> Figure:
    """Draw requests and TTFT over time for each system, with the printed bands."""
    figure, (top, below) = canvas(
        10.2, 6.0, rows=2, sharex=True, gridspec_kw={"height_ratios": [1, 3]}
    )
    rows = rows_of(tables["windows"])
    width = rows[0]["hours"]
    first = _busiest(rows)
    rows = [r for r in rows if first <= r["start_h"] < first + SHOWN_HOURS]
    load = [r for r in rows if r["system"] == "C2CServe" and r["seed"] == rows[0]["seed"]]
    rates = [r["requests"] / (width * 3600) for r in load]
    top.bar([r["start_h"] for r in load], rates, 0.94 * width, color=GREY, align="edge")
    top.set(ylabel="requests/s")
    top.set_title("(a) Load", fontsize=9.5)
    rows = [r for r in rows if r["is_drawn"]]
    shown_h = min(SHOWN_HOURS, max(r["start_h"] for r in load) + width - first)
    hours = (first + width * np.arange(round(shown_h / width))).tolist()
    summary = rows_of(tables["summary"])
    printed = (("ServerlessLLM", ORANGE, (2, 7)), ("Aegaeon", PURPLE, (0.3, 2)),
               ("C2CServe", GREEN, (0.2, 0.7)), ("C2CServe to the letter", GREEN, None),
               ("plus", BLUE, None))  # fmt: skip
    lowest = min(band for _, _, band in printed if band is not None)
    for system, colour, band in printed:
        chosen = [r for r in summary if r["system"] == system]
        if not chosen:
            continue
        middle = {k: float(np.median([r[k] for r in chosen]))
                  for k in ("ttft_p50_s", "ttft_p95_s", "within_target_percent")}  # fmt: skip
        label = (f"{system}: p50 {middle['ttft_p50_s']:.2f} s, p95 {middle['ttft_p95_s']:.2f} s, "
                 f"{middle['within_target_percent']:.2f}% within 1 s")  # fmt: skip
        of_system = [r for r in rows if r["system"] == system]
        _over_time(below, of_system, hours, colour, label, bands=band is not None)
        if band is None:
            continue
        below.axhspan(*band, color=colour, alpha=0.09, linewidth=0, zorder=0)
        # The lowest band's name is at its lower edge, as the others reach into it from above.
        edge, side = (1.08 * band[0], "bottom") if band == lowest else (0.93 * band[1], "top")
        below.text(hours[-1] + 2 * width, edge, f"paper: {band[0]}–{band[1]} s", color=colour,
                   fontsize=8, va=side)  # fmt: skip
    below.axhline(1.0, color=VERMILION, linestyle=":", linewidth=1.2)
    below.text(hours[-1] + 2 * width, 0.94, "target", color=VERMILION, fontsize=8, va="top")
    below.set_yscale("log")
    shown = [r[k] for r in rows for k in ("p5_s", "p95_s")]
    low, high = min([0.15, *shown]), max([10.0, *shown])  # the printed bands are always inside
    below.set(xlabel="hours of the compressed trace", ylabel="TTFT (s)", ylim=(low / 2, 40 * high),
              xlim=(first - width, hours[-1] + 11 * width))  # fmt: skip
    below.set_title("(b) Time to first token", fontsize=9.5)
    below.legend(loc="upper left", ncols=1)
    return finish(figure, "C2CServe, Fig. 12: trace replay, dense models", caption)


def _busiest(rows: list[dict[str, Any]]) -> float:
    """Return the first hour of the `SHOWN_HOURS` with most requests."""
    chosen = [r for r in rows if r["system"] == rows[0]["system"] and r["seed"] == rows[0]["seed"]]
    starts = [r["start_h"] for r in chosen]
    counts = [
        sum(r["requests"] for r in chosen if at <= r["start_h"] < at + SHOWN_HOURS) for at in starts
    ]
    return float(starts[int(np.argmax(counts))])


def _over_time(
    axes: Axes, rows: list[dict[str, Any]], hours: list[float], colour: str, label: str,
    *, bands: bool,
) -> None:  # fmt: skip
    """Draw the median over time; with bands, also the range over seeds and p5 to p95."""
    seeds, width = sorted({r["seed"] for r in rows}), rows[0]["hours"]
    where = {round(h / width): i for i, h in enumerate(hours)}
    values = {k: np.full((len(seeds), len(hours)), np.nan) for k in ("p5_s", "p50_s", "p95_s")}
    for r in rows:
        for key, grid in values.items():
            grid[seeds.index(r["seed"]), where[round(r["start_h"] / width)]] = r[key]
    # hours without a request stay gaps in the line
    has = ~np.isnan(values["p50_s"]).all(axis=0)
    lines = {key: np.full(len(hours), np.nan) for key in ("low", "middle", "high", "p5", "p95")}
    p50 = values["p50_s"][:, has]
    lines["low"][has], lines["high"][has] = np.nanmin(p50, axis=0), np.nanmax(p50, axis=0)
    lines["middle"][has] = np.nanmedian(p50, axis=0)
    lines["p5"][has] = np.nanmedian(values["p5_s"][:, has], axis=0)
    lines["p95"][has] = np.nanmedian(values["p95_s"][:, has], axis=0)
    middle = [h + width / 2 for h in hours]
    if bands:
        axes.fill_between(middle, lines["p5"], lines["p95"], color=colour, alpha=0.22, linewidth=0)
        axes.fill_between(middle, lines["low"], lines["high"], color=colour, alpha=0.5, linewidth=0)
    style = "-" if bands else "--"
    axes.plot(middle, lines["middle"], style, color=colour, linewidth=1.4, label=label)


def draw_fig14(tables: Tables, caption: str) -> Figure:
    """Draw p99 TTFT of every variant, one panel for each component; below, our own readings."""
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
        own = [r["ttft_p99_s"] for r in rows if r["panel"] == panel]
        axes.set(ylim=(0.0, TALLEST * max(own, default=1.0)), ylabel="p99 TTFT (s)")
    for axes, (panel, title) in zip(panels[:3], titles.items(), strict=True):
        _ablation(axes, rows, panel, title, whole=panel != "placement")
    for axes, (panel, title) in zip(panels[3:], OWN_READINGS.items(), strict=False):
        _ablation(axes, rows, panel, title, whole=False)
    for axes in panels[3 + len(OWN_READINGS) :]:
        own = [r["ttft_p99_s"] for r in rows if r["panel"] == "all"]
        axes.set(ylim=(0.0, TALLEST * max(own, default=1.0)), ylabel="p99 TTFT (s)")
        _ablation(axes, rows, "all", "(f) Beside the full system", whole=False)
    panels[0].set(ylabel="p99 TTFT (s)")
    panels[0].plot([], [], color=INK, linewidth=1.2, label="range over seeds")
    figure.legend(*_legend(panels[0]), loc="outside upper right", ncols=2)
    return finish(figure, "C2CServe, Fig. 14: worth of each component", caption)


def _ablation(axes: Axes, rows: list[dict[str, Any]], panel: str, title: str, whole: bool) -> None:
    """Draw the bars of one component; `whole`: value of the full system beside them."""
    names = list(dict.fromkeys(r["variant"] for r in rows if r["panel"] == panel))
    if whole:
        names.insert(0, "full system")
    shown: list[str] = []
    for at, name in enumerate(names):
        where = "all" if name == "full system" else panel
        chosen = [r for r in rows if r["panel"] == where and r["variant"] == name]
        _bar(axes, at, chosen, _colour(name))
        tpot = float(np.median([r["tpot_attainment_percent"] for r in chosen]))
        shown.append(f"{_short(name, panel)}\n{tpot:.0f}%")
    axes.set_xticks(range(len(names)), shown, fontsize=8)
    axes.set_xlabel("below: share within the TPOT target", fontsize=7.5)
    axes.set_title(title, fontsize=9.5)


def _short(name: str, panel: str) -> str:
    own = {"chunk": "table", "alpha": "feedback"}
    shown = own.get(panel, name) if name == "full system" else name
    return shown.replace(" ", "\n")


def _colour(name: str) -> str:
    if name in {"full system", "bandwidth aware", "table"}:
        return GREEN
    return BLUE if "ours" in name else GREY


def _bar(axes: Axes, at: int, rows: list[dict[str, Any]], colour: str) -> None:
    values = [r["ttft_p99_s"] for r in rows]
    middle = float(np.median(values))
    axes.bar(at, middle, 0.62, color=colour)
    axes.plot([at, at], [min(values), max(values)], color=INK, linewidth=1.2)
    # our number is above its bar, or above the paper's mark if that is in the way
    printed = rows[0]["published_p99_s"]
    highest = axes.get_ylim()[1]
    leaves = max(values) > highest  # the whisker leaves the axes; its number is beside it
    top = middle if leaves else min(max(values), 0.9 * highest)
    if printed is not None and abs(printed - top) < 0.15:
        top = max(top, printed)
    axes.annotate(
        f"{middle:.2f}\nto {max(values):.1f} ↑" if leaves else f"{middle:.2f}",
        (at, top),
        xytext=(-4 if leaves else 0, 4 if leaves else 7),
        textcoords="offset points",
        ha="right" if leaves else "center",
        fontsize=8,
        visible=middle <= highest,
    )
    # a bar that leaves the axes has a mark at their top
    axes.text(
        at, 0.97, f"{middle:.1f} ↑", ha="center", va="top", fontsize=8, color="white",
        transform=axes.get_xaxis_transform(), visible=middle > highest,
    )  # fmt: skip
    if rows[0]["published_p99_s"] is not None:
        mark_published(axes, [at], [rows[0]["published_p99_s"]])


def _legend(axes: Axes) -> tuple[list[Any], list[str]]:
    """Return handles and labels of a legend, each label once."""
    handles, labels = axes.get_legend_handles_labels()
    unique = dict(zip(labels, handles, strict=True))
    return list(unique.values()), list(unique)
