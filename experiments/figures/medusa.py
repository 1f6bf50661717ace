"""MEDUSA's figures: loading phases, tails of TTFT, restored graphs, switches."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator, StrMethodFormatter

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

__all__ = ["draw_restore", "draw_switch", "draw_timeline", "draw_traces"]

_NAMES: Final = {
    "vllm": "vLLM",
    "vllm_async": "vLLM + async",
    "no_graph": "without graphs",
    "medusa": "MEDUSA",
}
_COLOURS: Final = {"vllm": BLUE, "vllm_async": SKY, "no_graph": GREY, "medusa": VERMILION}
_STAGES: Final = {
    "structure": ("structure", GREY),
    "weights": ("weights", BLUE),
    "tokenizer": ("tokenizer", GREEN),
    "kv_profile": ("KV cache, profiled", ORANGE),
    "kv_restore": ("KV cache, restored", INK),
    "capture": ("graphs, captured", VERMILION),
    "first_layer": ("first layer, captured", PURPLE),
    "restore": ("graphs, restored", SKY),
}
_FAMILIES: Final = {"falcon": "Falcon", "llama2": "Llama2", "qwen15": "Qwen1.5", "yi": "Yi"}
_STARTS: Final = {"captured": "//", "vLLM": "//", "MEDUSA": ".."}
_CLASSIFIERS: Final = {"paper": "paper's", "ptx": "PTX", "differential": "ours"}


def draw_timeline(tables: Tables, caption: str) -> Figure:
    """Draw the stages of one model's starts, and all models' loading phases."""
    figure, (left, right) = canvas(11.0, 4.2, 2)
    _gantt(left, rows_of(tables["timeline"]))
    rows = rows_of(tables["models"])
    x = np.arange(len(rows))
    for k, (start, name) in enumerate(_NAMES.items()):
        seconds = [r[f"{start}_s"] for r in rows]
        right.bar(x + 0.2 * (k - 1.5), seconds, 0.2, color=_COLOURS[start], label=name)
    right.set_xticks(x, [_title(r["model"]) for r in rows], rotation=40, ha="right")
    right.set_ylabel("loading phase (s)")
    right.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=4, columnspacing=1.0)
    left.legend(loc="lower center", bbox_to_anchor=(0.4, 1.0), ncols=4, columnspacing=1.0)
    return finish(figure, "MEDUSA: loading phase by stage and by model", caption)


def _title(row: str) -> str:
    """Return a model's name as Table 1 prints it.

    >>> _title("qwen15_0p5b")
    'Qwen1.5 0.5B'
    """
    family, _, size = row.partition("_")
    return f"{_FAMILIES[family]} {size.replace('p', '.').upper()}"


def _gantt(axes: Any, spans: list[dict[str, Any]]) -> None:
    lanes = [(start, on) for start in _NAMES for on in ("cpu", "disk", "gpu")]
    seen: set[str] = set()
    for span in spans:
        y = -lanes.index((span["start"], span["on"]))
        length = span["end_s"] - span["begin_s"]
        name, colour = _STAGES[span["stage"]]
        axes.barh(
            y, length, left=span["begin_s"], height=0.8, color=colour,
            label=None if name in seen else name, edgecolor="white",
        )  # fmt: skip
        seen.add(name)
    units = {"cpu": "CPU", "disk": "disk", "gpu": "GPU"}
    labels = [f"{_NAMES[start]}, {units[on]}" for start, on in lanes]
    axes.set_yticks([-k for k in range(len(lanes))], labels, fontsize=7.5)
    axes.set_xlabel("time (s), Qwen1.5 4B")
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
    axes[0].set_xticks(range(len(groups)), [f"{_spec(m)}\n{r:g} RPS" for m, r in groups])
    axes[0].set_ylabel("p99 TTFT (s)")
    swept = rows_of(tables["sweep"])
    for start, name in _NAMES.items():
        mine = [r for r in swept if r["start"] == start]
        served, p99 = ([r[key] for r in mine] for key in ("served_rps", "p99_s"))
        axes[1].plot(served, p99, color=_COLOURS[start], marker="o", markersize=3, label=name)
    axes[1].set_yscale("log")
    axes[1].set_xscale("log")
    for axis, ticks in ((axes[1].xaxis, (0.5, 1, 2, 5, 10, 20, 40)),
                        (axes[1].yaxis, (1, 2, 3, 5, 10, 20, 50, 100))):  # fmt: skip
        axis.set_major_locator(FixedLocator(ticks))
        axis.set_major_formatter(StrMethodFormatter("{x:g}"))
        axis.set_minor_locator(NullLocator())
    axes[1].set_ylabel("p99 TTFT (s)")
    axes[1].set_xlabel("requests served a second (Llama2 7B)")
    return finish(figure, "MEDUSA: p99 TTFT of services that start from no instance", caption,
                  legend=axes[0])  # fmt: skip


def _spec(name: str) -> str:
    family, _, size = name.rpartition("-")
    return f"{_FAMILIES[family.replace('-', '').replace('.', '')]} {size.upper()}"


def draw_restore(tables: Tables, caption: str) -> Figure:
    """Draw restored nodes, and the results of the classifiers."""
    figure, (left, right) = canvas(10.0, 3.8, 2)
    rows = rows_of(tables["models"])
    left.barh([_title(r["model"]) for r in rows], [r["restored"] / 1e3 for r in rows],
              color=VERMILION)  # fmt: skip
    left.plot([r["nodes"] / 1e3 for r in rows], range(len(rows)), "D", color="black", markersize=4,
              markerfacecolor="none")  # fmt: skip
    left.set_xlabel("thousand nodes restored (diamonds: captured)")
    left.grid(axis="x")
    _classifiers(right, rows_of(tables["classifiers"]))
    return finish(figure, "MEDUSA: graphs restored on the emulated device", caption)


def _classifiers(axes: Any, cases: list[dict[str, Any]]) -> None:
    kinds = list(dict.fromkeys(r["programs"] for r in cases))
    places: list[int] = []
    labels: list[str] = []
    for group, kind in enumerate(kinds):
        rows = [r for r in cases if r["programs"] == kind]
        for k, row in enumerate(rows):
            x = group * (len(rows) + 1) + k
            wrong, refused = row["wrong_share"], row["refused_share"]
            seen = bool(places)
            axes.bar(x - 0.2, wrong, 0.4, color=VERMILION, label=None if seen else "wrong")
            axes.bar(x + 0.2, refused, 0.4, color=GREY, label=None if seen else "refused")
            for at, share in ((x - 0.2, wrong), (x + 0.2, refused)):
                if not share:
                    axes.text(at, 0.01, "0", ha="center", fontsize=7)
            places.append(x)
            labels.append(_CLASSIFIERS[row["classifier"]])
        middle = group * (len(rows) + 1) + (len(rows) - 1) / 2
        name = kind.replace(" like ", "\nlike ").replace(", ", ",\n")
        below = axes.get_xaxis_transform()
        axes.text(middle, -0.16, name, ha="center", va="top", transform=below)
    axes.set_xticks(places, labels, fontsize=7.5)
    axes.set_ylabel("share of programs")
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2)


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
