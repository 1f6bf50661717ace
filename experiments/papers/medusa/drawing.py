"""MEDUSA's figures: loading, TTFT tails, restored graphs, switches."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator, StrMethodFormatter

from experiments.figures.style import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    SKY,
    VERMILION,
    Tables,
    canvas,
    draw_table,
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
# Colours of stages are no system's; a kind of work has one hue, lighter where it is restored.
_STAGES: Final = {
    "structure": ("structure", "#44AA99"),
    "tokenizer": ("tokenizer", "#DDCC77"),
    "weights": ("weights", "#117733"),
    "kv_profile": ("KV cache, profiled", "#882255"),
    "kv_restore": ("KV cache, restored", "#E3A3BE"),
    "capture": ("graphs, captured", "#332288"),
    "first_layer": ("first layer, captured", "#7A6BC4"),
    "restore": ("graphs, restored", "#BBB3E6"),
}
_LANES: Final = {"cpu": "CPU", "disk": "disk", "gpu": "GPU"}
_FAMILIES: Final = {"falcon": "Falcon", "llama2": "Llama2", "qwen15": "Qwen1.5", "yi": "Yi"}
_STARTS: Final = {"captured": "//", "vLLM": "//", "MEDUSA": ".."}
_CLASSIFIERS: Final = {
    "paper": ("the paper's", "size and value"),
    "ptx": ("PTX", "declared pointers"),
    "differential": ("ours", "two captures compared"),
}


def draw_timeline(tables: Tables, caption: str) -> Figure:
    """Draw a model's starts in stages, and all models' phases."""
    figure, (left, right) = canvas(11.0, 4.6, 2)
    _gantt(left, rows_of(tables["timeline"]))
    rows = rows_of(tables["models"])
    x = np.arange(len(rows))
    for k, (start, name) in enumerate(_NAMES.items()):
        seconds = [r[f"{start}_s"] for r in rows]
        right.bar(x + 0.2 * (k - 1.5), seconds, 0.2, color=_COLOURS[start], label=name)
    right.set_xticks(x, [_title(r["model"]) for r in rows], rotation=40, ha="right")
    right.set_ylabel("loading phase (s)")
    right.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=4, columnspacing=1.0)
    handles, names = left.get_legend_handles_labels()
    order = [names.index(name) for name, _ in _STAGES.values() if name in names]
    left.legend([handles[k] for k in order], [names[k] for k in order], loc="lower center",
                bbox_to_anchor=(0.4, 1.0), ncols=3, columnspacing=1.0)  # fmt: skip
    return finish(figure, "MEDUSA: loading phase by stage and by model", caption)


def _title(row: str) -> str:
    """Return a model's name as Table 1 prints it.

    >>> _title("qwen15_0p5b")
    'Qwen1.5 0.5B'
    """
    family, _, size = row.partition("_")
    return f"{_FAMILIES[family]} {size.replace('p', '.').upper()}"


def _gantt(axes: Any, spans: list[dict[str, Any]]) -> None:
    lanes = {
        (start, on): -group * (len(_LANES) + 1) - k
        for group, start in enumerate(_NAMES)
        for k, on in enumerate(_LANES)
    }
    seen: set[str] = set()
    for span in spans:
        name, colour = _STAGES[span["stage"]]
        axes.barh(
            lanes[span["start"], span["on"]], span["end_s"] - span["begin_s"],
            left=span["begin_s"], height=0.85, color=colour, label=None if name in seen else name,
            edgecolor=colour, linewidth=0.8,
        )  # fmt: skip
        seen.add(name)
    labels = [
        f"$\\bf{{{_NAMES[start].replace(' ', '~')}}}$   {unit}" if on == "cpu" else unit
        for (start, on), unit in zip(lanes, len(_NAMES) * list(_LANES.values()), strict=True)
    ]
    axes.set_yticks(list(lanes.values()), labels, fontsize=8)
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel(f"time (s), {_title(spans[0]['model'])}")
    axes.grid(visible=False, axis="y")
    axes.grid(visible=True, axis="x")


def draw_traces(tables: Tables, caption: str) -> Figure:
    """Draw p99 TTFT with its band by rate and model, and over the rate."""
    swept = rows_of(tables["sweep"])
    models = list(dict.fromkeys(r["model"] for r in swept))
    figure, axes = canvas(5.5 * (1 + len(models)), 4.2, 1 + len(models))
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
    axes[0].set_xticks(range(len(groups)), [f"{_spec(m)}\n{r:g} RPS" for m, r in groups])
    axes[0].set_ylabel("p99 TTFT (s)")
    for model, panel in zip(models, axes[1:], strict=True):
        for start, name in _NAMES.items():
            mine = [r for r in swept if (r["model"], r["start"]) == (model, start)]
            served, p99 = ([r[key] for r in mine] for key in ("served_rps", "p99_s"))
            panel.plot(served, p99, color=_COLOURS[start], marker="o", markersize=3, label=name)
        panel.set_yscale("log")
        panel.set_xscale("log")
        for axis, ticks in ((panel.xaxis, (0.5, 1, 2, 5, 10, 20, 40)),
                            (panel.yaxis, (1, 2, 3, 5, 10, 20, 50, 100))):  # fmt: skip
            axis.set_major_locator(FixedLocator(ticks))
            axis.set_major_formatter(StrMethodFormatter("{x:g}"))
            axis.set_minor_locator(NullLocator())
        panel.set_ylabel("p99 TTFT (s)")
        panel.set_xlabel(f"requests served a second ({_spec(model)})")
    return finish(figure, "MEDUSA: p99 TTFT of services that start from no instance", caption,
                  legend=axes[0])  # fmt: skip


def _spec(name: str) -> str:
    family, _, size = name.rpartition("-")
    return f"{_FAMILIES[family.replace('-', '').replace('.', '')]} {size.upper()}"


def draw_restore(tables: Tables, caption: str) -> Figure:
    """Draw a table of classifiers' results by program."""
    rows = rows_of(tables["classifiers"])
    kinds = list(dict.fromkeys(r["programs"] for r in rows))
    row_of = {(r["classifier"], r["programs"]): r for r in rows}
    cells, below = [], []
    for classifier, (name, how) in _CLASSIFIERS.items():
        mine = [row_of[classifier, kind] for kind in kinds]
        cells.append([name, *(f"{100 * r['wrong_share']:.0f} % wrong" for r in mine)])
        below.append([how, *(f"{100 * r['refused_share']:.0f} % refused" for r in mine)])
    figure, (axes,) = canvas(8.0, 2.9)
    draw_table(axes, ["classifier", *kinds], cells, below, [1.3, *(1.5 for _ in kinds)])
    for text in axes.texts:
        if "% wrong" in text.get_text() and not text.get_text().startswith("0 "):
            text.set(color=VERMILION, fontweight="bold")
    return finish(figure, "MEDUSA: classifiers of parameters on random programs", caption)


def draw_switch(tables: Tables, caption: str) -> Figure:
    """Draw the time to the first computation after a switch, by system and start."""
    rows = rows_of(tables["switch"])
    figure, (axes,) = canvas(8.0, 3.6)
    models = list(dict.fromkeys(r["model"] for r in rows))
    kinds = list(dict.fromkeys(r["row"] for r in rows))
    for k, kind in enumerate(kinds):
        colour = GREEN if kind.startswith("C2CServe") else ORANGE
        hatch = next((h for start, h in _STARTS.items() if start in kind), "")
        seconds = [next(r["switch_s"] for r in rows if (r["row"], r["model"]) == (kind, m))
                   for m in models]  # fmt: skip
        x = np.arange(len(models)) + 0.8 / len(kinds) * (k - (len(kinds) - 1) / 2)
        axes.bar(x, seconds, 0.8 / len(kinds), color=colour, hatch=hatch, edgecolor="white",
                 label=kind)  # fmt: skip
    axes.set_xticks(range(len(models)), models)
    axes.set_ylabel("time of a switch (s)")
    return finish(figure, "MEDUSA: switches of models with captured and restored graphs", caption,
                  legend=axes, columns=3)  # fmt: skip
