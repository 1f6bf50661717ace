"""Fig. 2 (workload statistics) and Fig. 6 (interference on the link)."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.figures.style import (
    BLUE,
    COLOURS,
    GREY,
    INK,
    ORANGE,
    VERMILION,
    Tables,
    canvas,
    finish,
    mark_published,
    rows_of,
)

__all__ = ["draw_fig2", "draw_fig6"]


def draw_fig2(tables: Tables, caption: str) -> Figure:
    """Draw popular models' hourly rates and the active-hour distribution."""
    sources = list(dict.fromkeys(tables["hourly"]["source"].to_pylist()))
    figure, panels = canvas(10.6, 3.2 * len(sources) + 0.9, columns=2, rows=len(sources),
                            width_ratios=[1.6, 1])  # fmt: skip
    for i, source in enumerate(sources):
        _hourly(panels[2 * i], tables, source)
        _active(panels[2 * i + 1], tables, source)
    return finish(figure, "C2CServe, Fig. 2: bursts, idle hours and the long tail", caption)


def _hourly(axes: Axes, tables: Tables, source: str) -> None:
    rows = rows_of(tables["hourly"], source=source)
    ranks = sorted({r["rank"] for r in rows})
    top = max(r["requests"] for r in rows)
    for rank, colour in zip(ranks, COLOURS, strict=False):
        series = np.array([r["requests"] for r in rows if r["rank"] == rank]) / top
        base = len(ranks) - rank
        days = np.arange(len(series)) / 24
        axes.fill_between(days, base, base + 0.95 * series, step="post", color=colour, linewidth=0)
        axes.text(-0.25, base + 0.2, f"#{rank}", ha="right", color=colour, fontweight="bold")
    axes.set(
        xlabel="day", xlim=(0, None), xticks=range(0, 25, 5), ylim=(-0.05, len(ranks)), yticks=[]
    )
    axes.grid(visible=False)
    axes.spines["left"].set_visible(False)
    axes.set_title(f"{source}: hourly requests of the most popular models (peak {top:,} an hour)",
                   fontsize=9)  # fmt: skip


def _active(axes: Axes, tables: Tables, source: str) -> None:
    share = np.sort(
        [100 * r["active_hour_share"] for r in rows_of(tables["active"], source=source)]
    )
    cdf = 100 * np.arange(1, len(share) + 1) / len(share)
    axes.step(share, cdf, where="post", color=BLUE, label=f"{len(share)} active models")
    counts, edges = np.histogram(share, bins=np.arange(0, 65, 5))
    axes.bar(edges[:-1] + 2.5, 100 * counts / len(share), 4.4, color=BLUE, alpha=0.25,
             label="histogram")  # fmt: skip
    value_of = {r["quantity"]: r["value"] for r in rows_of(tables["statistics"], source=source)}
    idle, rare = 100 * value_of["median_idle_share"], 100 * value_of["rare_hours_share"]
    mark_published(axes, [20, 4], [83, 50], "paper: 83% below 20%, median 4%")
    axes.plot([20], [rare], "o", color=VERMILION, markersize=4,
              label=f"ours: {rare:.1f}%, median {100 - idle:.1f}%", zorder=6)  # fmt: skip
    axes.plot([100 - idle], [50], "o", color=VERMILION, markersize=4, zorder=6)
    axes.set(xlabel="hours active (%)", ylabel="models (%)", ylim=(0, 103), xlim=(0, 65))
    axes.set_title("Active hours", fontsize=9)
    axes.legend(loc="center right", fontsize=7.5, bbox_to_anchor=(1.0, 0.42))


def draw_fig6(tables: Tables, caption: str) -> Figure:
    """Draw solo sum against co-run throughput over pair size and chunk."""
    figure, (left, right) = canvas(10.0, 4.6, columns=2)
    rows = rows_of(tables["size"], phase="decode")
    x = np.arange(len(rows))
    for offset, key, colour, label in (
        (-0.2, "solo_tokens_per_s", GREY, "sum of solo runs"),
        (0.2, "corun_tokens_per_s", BLUE, "co-run"),
    ):
        left.bar(x + offset, [r[key] for r in rows], 0.38, color=colour, label=label)
    published = {0: 28, len(rows) - 1: 42}
    for spot, r in enumerate(rows):
        text = f"−{r['gap_percent']:.0f}%"
        if spot in published:
            text += f"\npaper\n−{published[spot]}%"
        left.annotate(text, (spot, r["solo_tokens_per_s"]), xytext=(0, 4), ha="center", va="bottom",
                      textcoords="offset points", fontsize=8, color=INK)  # fmt: skip
    left.set_xticks(x, [f"{r['size_gb']:.0f}" for r in rows])
    left.set(xlabel="size of both models (GB)", ylabel="tokens/s")
    left.margins(y=0.27)
    left.set_title("(a) Decode, over the pair's size")
    left.legend(loc="upper right")

    styles = {"tuned": (BLUE, "o-", "α tuned"), "asym": (ORANGE, "s--", "AsymGEMM"),
              "sym": (GREY, "^:", "SymGEMM")}  # fmt: skip
    chunks: list[int] = []
    for mode, (colour, line, label) in styles.items():
        chosen = rows_of(tables["chunk"], alpha=mode)
        chunks = [r["chunk_tokens"] for r in chosen]
        right.plot(range(len(chunks)), [r["gap_percent"] for r in chosen], line, color=colour,
                   label=label, markersize=5)  # fmt: skip
    mark_published(right, [0, len(chunks) - 1], [2, 42])
    right.set_xticks(range(len(chunks)), [f"{c}" for c in chunks[:-1]] + [f"{chunks[-1]}\nfull"])
    right.set(xlabel="chunk (tokens)", ylabel="interference gap (%)", ylim=(-2, 50))
    right.set_title("(b) Prefill, over the chunk size")
    right.legend(loc="upper left", ncols=2, bbox_to_anchor=(0.3, 0.36))
    return finish(
        figure, "C2CServe, Fig. 6: interference of two models on the shared link", caption
    )
