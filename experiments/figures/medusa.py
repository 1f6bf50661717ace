"""MEDUSA's figures: loading phases, tails of TTFT, restored graphs, switches."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from matplotlib.figure import Figure

from experiments.figures.style import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PURPLE,
    SKY,
    VERMILION,
    Tables,
    canvas,
    finish,
    rows_of,
)

__all__ = ["draw_restore", "draw_switch", "draw_timeline", "draw_traces"]

_NAMES: Final = {
    "vllm": "vLLM",
    "vllm_async": "vLLM + async",
    "no_graph": "without graphs",
    "medusa": "MEDUSA",
}
_COLOURS: Final = {"vllm": BLUE, "vllm_async": SKY, "no_graph": GREY, "medusa": VERMILION}
_STAGES: Final = {
    "structure": GREY,
    "weights": BLUE,
    "tokenizer": GREEN,
    "kv_profile": ORANGE,
    "kv_restore": ORANGE,
    "capture": VERMILION,
    "first_layer": PURPLE,
    "restore": PURPLE,
}


def draw_timeline(tables: Tables, caption: str) -> Figure:
    """Draw the stages of one model's starts, and all models' loading phases."""
    figure, (left, right) = canvas(11.0, 4.2, 2)
    _gantt(left, rows_of(tables["timeline"]))
    rows = rows_of(tables["models"])
    x = np.arange(len(rows))
    for k, (start, name) in enumerate(_NAMES.items()):
        seconds = [r[f"{start}_s"] for r in rows]
        right.bar(x + 0.2 * (k - 1.5), seconds, 0.2, color=_COLOURS[start], label=name)
    right.set_xticks(x, [r["model"].replace("_", " ") for r in rows], rotation=40, ha="right")
    right.set_ylabel("loading phase (s)")
    figure.legend(*right.get_legend_handles_labels(), loc="outside right upper")
    figure.legend(*left.get_legend_handles_labels(), loc="outside right lower")
    return finish(figure, "MEDUSA: loading phase by stage and by model", caption)


def _gantt(axes: Any, spans: list[dict[str, Any]]) -> None:
    lanes = [(start, on) for start in _NAMES for on in ("cpu", "disk", "gpu")]
    seen: set[str] = set()
    for span in spans:
        y = -lanes.index((span["start"], span["on"]))
        length = span["end_s"] - span["begin_s"]
        name = span["stage"].replace("_", " ")
        axes.barh(
            y, length, left=span["begin_s"], height=0.8, color=_STAGES[span["stage"]],
            label=None if name in seen else name, edgecolor="white",
        )  # fmt: skip
        seen.add(name)
    labels = [f"{_NAMES[start]}, {on}" for start, on in lanes]
    axes.set_yticks([-k for k in range(len(lanes))], labels, fontsize=7.5)
    axes.set_xlabel("seconds (Qwen1.5 4B)")
    axes.grid(axis="x")


def draw_traces(tables: Tables, caption: str) -> Figure:
    """Draw p99 TTFT with its band by rate and model, and over the rate."""
    figure, axes = canvas(11.0, 4.2, 2)
    rows = rows_of(tables["tails"])
    least = min(r["at"] for r in rows)
    rows = [r for r in rows if r["at"] == least]
    groups = list(dict.fromkeys((r["model"], r["rate_rps"]) for r in rows))
    for k, (start, name) in enumerate(_NAMES.items()):
        mine = [next(r for r in rows if (r["model"], r["rate_rps"], r["start"]) == (*g, start))
                for g in groups]  # fmt: skip
        mid = np.array([r["p99_s"] for r in mine])
        low = mid - [r["p99_low_s"] for r in mine]
        high = np.array([r["p99_high_s"] for r in mine]) - mid
        x = np.arange(len(groups)) + 0.2 * (k - 1.5)
        axes[0].bar(x, mid, 0.2, yerr=[low, high], color=_COLOURS[start], label=name, capsize=2)
    axes[0].set_xticks(range(len(groups)), [f"{m}\n{r:g} RPS" for m, r in groups])
    axes[0].set_ylabel("p99 TTFT (s)")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside right upper")
    swept = rows_of(tables["sweep"])
    for start, name in _NAMES.items():
        mine = [r for r in swept if r["start"] == start]
        served, p99 = ([r[key] for r in mine] for key in ("served_rps", "p99_s"))
        axes[1].plot(served, p99, color=_COLOURS[start], marker="o", markersize=3, label=name)
    axes[1].set_yscale("log")
    axes[1].set_xscale("log")
    axes[1].set_xlabel("requests served a second (Llama2 7B)")
    return finish(figure, "MEDUSA: tail of TTFT from no instance on", caption)


def draw_restore(tables: Tables, caption: str) -> Figure:
    """Draw nodes restored and what became of the classifiers."""
    figure, (left, right) = canvas(10.0, 3.8, 2)
    rows = rows_of(tables["models"])
    left.barh([r["model"].replace("_", " ") for r in rows], [r["restored"] for r in rows],
              color=VERMILION)  # fmt: skip
    left.plot([r["nodes"] for r in rows], range(len(rows)), "D", color="black", markersize=4,
              markerfacecolor="none")  # fmt: skip
    left.set_xlabel("nodes restored (diamonds: captured)")
    left.grid(axis="x")
    cases = rows_of(tables["classifiers"])
    x = np.arange(len(cases))
    right.bar(x - 0.2, [r["wrong_share"] for r in cases], 0.4, color=VERMILION, label="wrong")
    right.bar(x + 0.2, [r["refused_share"] for r in cases], 0.4, color=GREY, label="refused")
    names = [f"{r['classifier']}, {r['programs']}" for r in cases]
    right.set_xticks(x, names, fontsize=7.5, rotation=35, ha="right")
    right.set_ylabel("share of programs")
    figure.legend(*right.get_legend_handles_labels(), loc="outside right upper")
    return finish(figure, "MEDUSA: graphs restored on the emulated device", caption)


def draw_switch(tables: Tables, caption: str) -> Figure:
    """Draw the time to the first computation after a switch, by system and start."""
    rows = rows_of(tables["switch"])
    figure, (axes,) = canvas(8.0, 3.6)
    models = list(dict.fromkeys(r["model"] for r in rows))
    kinds = list(dict.fromkeys(r["row"] for r in rows))
    colours = (BLUE, GREY, VERMILION, ORANGE, PURPLE)
    for k, kind in enumerate(kinds):
        seconds = [next(r["switch_s"] for r in rows if (r["row"], r["model"]) == (kind, m))
                   for m in models]  # fmt: skip
        x = np.arange(len(models)) + 0.8 / len(kinds) * (k - (len(kinds) - 1) / 2)
        axes.bar(x, seconds, 0.8 / len(kinds), color=colours[k % len(colours)], label=kind)
    axes.set_xticks(range(len(models)), models)
    axes.set_ylabel("switch (s)")
    figure.legend(*axes.get_legend_handles_labels(), loc="outside right upper")
    return finish(figure, "A switch of models, and what captured graphs add", caption)
