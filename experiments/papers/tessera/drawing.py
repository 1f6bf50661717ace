"""Tessera's figures: kernels, throughput, latency, pipelining, monitor, slow links."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
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
    SKY,
    VERMILION,
    Tables,
    canvas,
    finish,
    mark_published,
    rows_of,
)
from experiments.papers.tessera.cluster import LABELS as CLUSTER
from experiments.papers.tessera.pairs_online import ONLINE
from experiments.papers.tessera.workloads import LABELS

__all__ = [
    "draw_cluster",
    "draw_heterogeneity",
    "draw_network",
    "draw_offline",
    "draw_online",
    "draw_pipelining",
    "draw_switching",
]

_WAYS: Final = {
    "right": ("right GPU alone", GREY),
    "replicas": ("two GPUs apart", BLUE),
    "layers": ("layers apart (PP)", GREEN),
    "prefill_decode": ("PD", SKY),
    "attention_ffn": ("AF", ORANGE),
    "kernels": ("Tessera", VERMILION),
    "limit": ("limit of all placements", "#CFCFCF"),
}
_ONLINE: Final = {"left": GREY, "replicas": BLUE, "pd": SKY, "af": ORANGE, "tessera": VERMILION}
_TICKS: Final = {"llama-3-8b": "Llama-3\n8B", "gpt-oss-20b": "GPT-oss\n20B",
                 "mamba-codestral-7b": "Mamba\n7B", "qwen2.5-vl-7b": "Qwen2.5\nVL 7B",
                 "sd3.5-medium": "SD3.5"}  # fmt: skip


def _published(name: str) -> float:
    return float(claim(f"tessera.{name}").value)


def draw_heterogeneity(tables: Tables, caption: str) -> Figure:
    """Draw the distribution of kernels' ratios of times, and shares."""
    figure, (left, right) = canvas(10.0, 4.0, 2)
    rows = rows_of(tables["kernels"])
    for name, colour in zip(dict.fromkeys(r["workload"] for r in rows), COLOURS, strict=False):
        ratios = np.sort([r["ratio"] for r in rows if r["workload"] == name])
        left.plot(ratios, np.linspace(0, 100, len(ratios)), color=colour, label=LABELS[name])
    left.axvline(1, color=GREY, linestyle="--", linewidth=1)
    left.set_xscale("log")
    left.set_xticks([0.4, 0.6, 1, 1.5, 2.5], ["0.4", "0.6", "1", "1.5", "2.5"])
    left.minorticks_off()
    slow, fast = rows[0]["gpus"]
    left.set_xlabel(f"time on {fast} / time on {slow}")
    left.set_ylabel("kernels up to that ratio (%)")
    left.legend(loc="lower right")
    shares = rows_of(tables["shares"])
    count, time = ([r["percent"] for r in shares if r["weighting"] == w] for w in ("count", "time"))
    groups = {r["what"]: r["percent"] for r in shares if r["weighting"] == "group"}
    last = [r["what"] for r in shares if r["weighting"] == "time"][-1]
    names = ["all,\ncount", "all,\ntime", f"{last},\ntime", "prefill", "decode",
             "attention", "FFN"]  # fmt: skip
    ours = [float(np.mean(count)), float(np.mean(time)), time[-1],
            *(groups[g] for g in ("prefill", "decode", "attention", "ffn"))]  # fmt: skip
    printed = ("fig2a.kernels_faster_l40s", "fig2b.time_share", "fig2b.time_share_diffusion",
               "fig3a.prefill", "fig3a.decode", "fig3b.attention", "fig3b.ffn")  # fmt: skip
    right.bar(range(len(names)), ours, 0.6, color=[BLUE] * 3 + [GREEN] * 4, label="ours")
    mark_published(right, list(range(len(names))), [_published(p) for p in printed])
    right.set_xticks(range(len(names)), names, fontsize=7.5)
    right.set_ylim(0, 100)
    right.set_ylabel(f"faster on {fast} (%)")
    right.text(4.5, 96, "GPT-oss 20B, by count", ha="center", va="top", fontsize=8, color=GREEN)
    right.legend(*_last(right), loc="upper left")
    return finish(figure, "Tessera, Figs. 2 and 3: kernels that the cheaper GPU runs faster",
                  caption)  # fmt: skip


def _last(axes: Any) -> tuple[list[Any], list[str]]:
    handles, labels = axes.get_legend_handles_labels()
    entries = [(h, x) for h, x in zip(handles, labels, strict=True) if x == "paper"]
    return [h for h, _ in entries], [x for _, x in entries]


def draw_offline(tables: Tables, caption: str) -> Figure:
    """Draw throughput by cell, and for the price."""
    rows = rows_of(tables["cells"])
    pairs = list(dict.fromkeys(r["pair"] for r in rows))
    workloads = list(dict.fromkeys(r["workload"] for r in rows))
    figure, axes = canvas(12.5, 3.1 * -(-(len(pairs) + 1) // 2), 2, -(-(len(pairs) + 1) // 2))
    for ax in axes[len(pairs) : -1]:
        ax.axis("off")
    for ax, pair in zip(axes, pairs, strict=False):
        for k, (way, (label, colour)) in enumerate(_WAYS.items()):
            row_of = {r["workload"]: r for r in rows if (r["pair"], r["way"]) == (pair, way)}
            x = np.arange(len(workloads)) + 0.125 * (k - 3)
            ax.bar(x, [row_of[w]["relative"] for w in workloads], 0.125, color=colour, label=label)
            lost = [
                place for place, w in zip(x, workloads, strict=True) if not row_of[w]["applies"]
            ]
            ax.plot(lost, [0.06] * len(lost), "x", color="#C00000", markersize=5)
        ax.axhline(1, color=INK, linewidth=0.8, linestyle=":")
        ax.set_xticks(range(len(workloads)), [_TICKS[w] for w in workloads])
        ax.set_ylim(0, 2.3)
        ax.set_ylabel("requests/s, left GPU = 1")
        ax.set_title(LABELS.get(pair, pair))
    means = rows_of(tables["means"])
    last = axes[-1]
    for k, (way, (_, colour)) in enumerate(list(_WAYS.items())[:-1]):
        mine = [next(m for m in means if (m["pair"], m["way"]) == (p, way)) for p in pairs]
        x = np.arange(len(pairs)) + 0.14 * (k - 2.5)
        last.bar(x, [m["for_price"] for m in mine], 0.14, color=colour)
        mark_published(last, list(x), [m["published_for_price"] for m in mine],
                       "paper" if k == 0 else "_")  # fmt: skip
    last.axhline(1, color=INK, linewidth=0.8, linestyle=":")
    last.set_xticks(range(len(pairs)), [LABELS.get(p, p) for p in pairs])
    last.set_ylabel("for the price, left GPU = 1")
    last.set_title("Cost efficiency, means (Table III)")
    last.legend(loc="upper right")
    return finish(
        figure,
        "Tessera, Fig. 6 and Table III: offline throughput",
        caption,
        legend=axes[0],
        columns=7,
    )


def draw_online(tables: Tables, caption: str) -> Figure:
    """Draw latency a token over the rate, a panel a pair."""
    rows = rows_of(tables["latency"])
    pairs = list(dict.fromkeys(r["pair"] for r in rows))
    ways = [way for way in _ONLINE if any(r["way"] == way for r in rows)]
    figure, axes = canvas(4.0 * max(len(pairs), 2), 3.7, len(pairs))
    slo = _published("fig7.slo")
    for ax, pair in zip(axes, pairs, strict=True):
        for way in ways:
            mine = [r for r in rows if (r["pair"], r["way"]) == (pair, way)]
            ax.plot([r["rate_rps"] for r in mine], [1e3 * r["per_token_s"] for r in mine],
                    color=_ONLINE[way], marker="o", markersize=3, label=ONLINE[way])  # fmt: skip
        ax.axhline(slo, color="#C00000", linestyle="--", linewidth=1)
        ax.set_yscale("log")
        ax.set_ylim(1.5, 400)
        ax.set_yticks([2, 5, 10, 20, 50, 100, 200], ["2", "5", "10", "20", "50", "100", "200"])
        ax.minorticks_off()
        ax.set_xlabel("requests a second")
        ax.set_title(LABELS.get(pair, pair))
    axes[0].set_ylabel("latency (ms a token)")
    return finish(figure, "Tessera, Fig. 7: GPT-oss 20B online", caption, legend=axes[0], columns=5)


def draw_cluster(tables: Tables, caption: str) -> Figure:
    """Draw throughput of each system in both clusters."""
    figure, axes = canvas(9.0, 3.8, 2)
    colours = {"left": GREY, **{way: colour for way, (_, colour) in _WAYS.items()}}
    for ax, cluster in zip(axes, ("three", "sixteen"), strict=True):
        rows = rows_of(tables["clusters"], cluster=cluster)
        relative_of = {r["way"]: r["relative"] for r in rows}
        bars = ax.bar(range(len(CLUSTER)), [relative_of[w] for w in CLUSTER], 0.65,
                      color=[colours[w] for w in CLUSTER])  # fmt: skip
        ax.bar_label(
            bars,
            fmt="%.2f",
            fontsize=8,
            label_type="center",
            color=INK,
            bbox={"facecolor": "white", "alpha": 0.8, "edgecolor": "none", "pad": 1.5},
        )
        printed = [_published(f"fig8{'a' if cluster == 'three' else 'b'}.vs_{base}")
                   for base in ("pd", "af")]  # fmt: skip
        names = list(CLUSTER)
        places = [names.index("prefill_decode"), names.index("attention_ffn")]
        mark_published(
            ax, places, [relative_of["kernels"] / p for p in printed], "paper: Tessera over it"
        )
        ax.set_xticks(
            range(len(CLUSTER)), [x.replace(" group ", "\ngroup ") for x in CLUSTER.values()]
        )
        ax.set_ylim(0, 1.2 * max(relative_of.values()))
        ax.set_title(rows[0]["setup"])
    axes[0].set_ylabel("requests/s, left group = 1")
    axes[0].legend(loc="upper left")
    return finish(figure, "Tessera, Fig. 8: offline throughput of two clusters", caption)


def draw_pipelining(tables: Tables, caption: str) -> Figure:
    """Draw the share of the optimum by mode and number in flight."""
    figure, axes = canvas(11.5, 3.8, 3, sharey=True)
    rows = rows_of(tables["shares"])
    colours = {"none": GREY, "naive": ORANGE, "priority": VERMILION, "shortest": BLUE}
    labels = {"priority": "oldest first (priority)", "shortest": "shortest first (ours)"}
    plans = list(dict.fromkeys(r["plan"] for r in rows))
    for ax, plan in zip(axes, reversed(plans), strict=True):
        for mode, colour in colours.items():
            mine = [r for r in rows if (r["plan"], r["mode"]) == (plan, mode)]
            flights = sorted({r["in_flight"] for r in mine})
            mean = [float(np.mean([r["percent"] for r in mine if r["in_flight"] == n]))
                    for n in flights]  # fmt: skip
            if mode == "none":
                ax.axhline(mean[0], color=colour, linestyle="--", linewidth=1.2, label="none")
            else:
                ax.plot(
                    range(len(flights)),
                    mean,
                    color=colour,
                    marker="o",
                    label=labels.get(mode, mode),
                )
        ax.set_xticks(range(len(flights)), [str(n) for n in flights])
        ax.set_xlabel("requests in flight")
        ax.set_ylim(0, 105)
        ax.set_title(plan[0].upper() + plan[1:])
    none, gain = _published("fig9a.no_pipeline"), _published("fig9a.naive_gain")
    mark_published(axes[0], [1, 1, 1], [none, none * gain, _published("fig9a.with_priority")])
    axes[0].set_ylabel("share of the optimum (%)")
    axes[0].legend(loc="lower right")
    return finish(figure, "Tessera, Fig. 9: pipelining with and without priorities", caption)


def draw_switching(tables: Tables, caption: str) -> Figure:
    """Draw latency a token and switches over window and threshold."""
    figure, axes = canvas(11.0, 3.9, 2)
    rows = rows_of(tables["settings"])
    lines = {"latency only": PURPLE, "throughput only": GREEN, "two GPUs apart": BLUE}
    for ax, (varied, axis) in zip(
        axes, (("window", "window W (s)"), ("threshold", "threshold")), strict=True
    ):
        mine = [r for r in rows if r["varied"] == varied]
        latency = [1e3 * r["per_token_s"] for r in mine]
        spread = [[1e3 * (r["per_token_s"] - r["lowest_s"]) for r in mine],
                  [1e3 * (r["highest_s"] - r["per_token_s"]) for r in mine]]  # fmt: skip
        ax.errorbar(range(len(mine)), latency, spread, color=VERMILION, marker="o", capsize=2,
                    elinewidth=0.8, label="the monitor")  # fmt: skip
        index = next(k for k, r in enumerate(mine) if r["is_usual"])
        usual = latency[index]
        _own_rule(ax, rows, varied, index, usual)
        ends = ("aggressive_penalty", "conservative_penalty")
        mark_published(ax, [0, len(mine) - 1], [usual * _published(f"fig10.{n}") for n in ends],
                       "the paper's worst")  # fmt: skip
        level = {name: 1e3 * next(r["per_token_s"] for r in rows if r["varied"] == name)
                 for name in lines}  # fmt: skip
        for name, colour in lines.items():
            ax.axhline(level[name], color=colour, linestyle="--", linewidth=1.2, label=name)
        names = [f"{r['value']:g}\n{r['switches']:.0f}" for r in mine]
        ax.set_xticks(range(len(mine)), names)
        highest = [1e3 * r["highest_s"] for r in mine]
        worst = usual * _published("fig10.conservative_penalty")
        ax.set_ylim(0, 1.15 * max(worst, *highest, *level.values()))
        ax.set_xlabel(f"{axis}, above; switches, below")
    axes[0].set_ylabel("latency (ms a token)")
    return finish(
        figure,
        "Tessera, Fig. 10: the monitor's window and threshold",
        caption,
        legend=axes[0],
        columns=6,
    )


def _own_rule(axes: Any, rows: Sequence[dict[str, Any]], varied: str, x: int, usual: float) -> None:
    rule = {"window": "band", "threshold": "prompts"}[varied]
    ours = next(r for r in rows if r["varied"] == rule)
    note = {
        "band": f"ours: a band of {100 * ours['value']:.0f} %\naround the threshold",
        "prompts": f"ours: a switch at {ours['value']:g}\nwaiting prompts",
    }[rule]
    y = 1e3 * ours["per_token_s"]
    axes.plot(x, y, "s", color=INK, markersize=6, zorder=6)
    axes.annotate(
        note, (x, y), (x, y + 6 if y > usual else 0.5 * y), ha="center", va="center",
        fontsize=8, color=INK,
        arrowprops={"arrowstyle": "-", "color": INK, "linewidth": 0.8, "shrinkB": 4},
    )  # fmt: skip


def draw_network(tables: Tables, caption: str) -> Figure:
    """Draw throughput and latency over the link, and planner seconds."""
    figure, (left, mid, right) = canvas(11.0, 3.7, 3)
    rows = rows_of(tables["network"])
    x = range(len(rows))
    names = [f"{r['gbits']:g}" for r in rows]
    left.bar(x, [r["offline"] for r in rows], 0.6, color=VERMILION, label="Tessera")
    left.axhline(rows[0]["replicas"], color=BLUE, linestyle="--", label="two GPUs apart")
    left.set_ylim(0, 3.0)
    left.set_ylabel("requests/s, left GPU = 1")
    mid.bar(x, [r["online_ms"] for r in rows], 0.6, color=VERMILION, label="Tessera")
    mid.axhline(rows[0]["alone_ms"], color=GREY, linestyle="--", label="left GPU alone")
    mid.set_ylim(0, 1.5 * rows[0]["alone_ms"])
    mid.set_ylabel("latency (ms a token)")
    for ax in (left, mid):
        ax.set_xticks(x, names)
        ax.set_xlabel("link (Gbit/s)")
        ax.legend(loc="upper right")
    _planner(right, rows_of(tables["planner"]))
    return finish(figure, "Tessera, Fig. 11: slow links, and time to plan", caption)


def _planner(ax: Any, rows: Sequence[dict[str, Any]]) -> None:
    kinds = {("milp", "throughput"): ("throughput policy", VERMILION),
             ("cut", "latency"): ("latency policy, minimum cut", BLUE)}  # fmt: skip
    for (how, policy), (label, colour) in kinds.items():
        mine = sorted(
            (r["kernels"], r["seconds"]) for r in rows if (r["how"], r["policy"]) == (how, policy)
        )
        ax.plot([n for n, _ in mine], [s for _, s in mine], color=colour, marker="o", label=label)
    mark_published(
        ax, [200, 1000], [_published("fig11b.solve_200"), _published("fig11b.solve_1000")]
    )
    ax.set_yscale("log")
    ax.set_ylim(1e-3, 30)
    ax.set_xlabel("kernels")
    ax.set_ylabel("CPU seconds to plan")
    ax.legend(loc="upper right")
