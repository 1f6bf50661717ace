"""Figure of the prefix cache."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

from experiments.figures.style import (
    BLUE,
    GREY,
    INK,
    ORANGE,
    SKY,
    Tables,
    canvas,
    finish,
    rows_of,
)

__all__ = ["draw_prefix"]

_WIDTH: Final = 0.38  # of a bar


def draw_prefix(tables: Tables, caption: str) -> Figure:
    """Draw latency and cached tokens over host memory, and by chip."""
    slices, chips = (rows_of(tables["runs"], part=part) for part in ("slices", "chips"))
    figure, (late, hits, wait, link) = canvas(11.0, 7.4, columns=2, rows=2)
    _over_memory(late, hits, slices)
    _by_chip(wait, chips, "ttft_p50_s")
    wait.set(ylabel="TTFT p50 (s)", title="(b) One whole chip: wait")
    wait.legend(loc="upper right")
    _by_chip(link, chips, "link_tb")
    link.set(ylabel="over the link, host to device (TB)", title="(b) One whole chip: link")
    link.legend(loc="upper right")
    for axes, column in ((wait, "ttft_p50_s"), (link, "link_tb")):
        values = [r[column] for r in chips if r[column]]
        room = (max(values) / min(values)) ** 0.6 * 6  # the legend's
        axes.set_ylim(min(values) / 3, max(values) * room)
    return finish(figure, "A prefix cache in host memory", caption)


def _over_memory(late: Axes, hits: Axes, rows: Sequence[dict[str, Any]]) -> None:
    x = [r["host_gb"] for r in rows]
    for column, label, mark, colour in (
        ("ttft_p50_s", "p50", "o", BLUE),
        ("ttft_p95_s", "p95", "s", ORANGE),
    ):
        late.plot(x, [r[column] for r in rows], marker=mark, color=colour, label=label)
    late.set(xlabel="host memory for blocks (GB)", ylabel="TTFT (s)", yscale="log", xticks=x,
             title="(a) Seven slices of a GH200: wait")  # fmt: skip
    late.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    late.yaxis.set_major_formatter("{x:g}")
    late.yaxis.set_minor_formatter(NullFormatter())
    late.legend(loc="upper right")
    places = np.arange(len(rows))
    hbm, host = ([r[f"found_{tier}_percent"] for r in rows] for tier in ("hbm", "host"))
    hits.bar(places, host, 0.6, color=BLUE, label="in host memory")
    bars = hits.bar(places, hbm, 0.6, bottom=host, color=SKY, label="in HBM")
    totals = [a + b for a, b in zip(hbm, host, strict=True)]
    hits.bar_label(bars, [f"{total:.1f}" for total in totals], padding=2, fontsize=8)
    hits.set_xticks(places, [str(gb) for gb in x])
    hits.set(xlabel="host memory for blocks (GB)", ylabel="prompt tokens found (%)",
              ylim=(0, 1.15 * max(1.0, *totals)),
              title="(a) Seven slices of a GH200: found")  # fmt: skip
    hits.legend(loc="upper left")


def _by_chip(axes: Axes, rows: Sequence[dict[str, Any]], column: str) -> None:
    places = list(dict.fromkeys((r["weights"], r["chip"]) for r in rows))
    sizes = sorted({r["host_gb"] for r in rows})
    chips = len(dict.fromkeys(chip for _, chip in places))
    where = {place: k + 0.5 * (k // chips) for k, place in enumerate(places)}
    for k, (gb, colour) in enumerate(zip(sizes, (GREY, BLUE), strict=True)):
        here = [r for r in rows if r["host_gb"] == gb]
        x = [where[r["weights"], r["chip"]] + (k - 0.5) * _WIDTH for r in here]
        values = [r[column] for r in here]
        label = f"{gb} GB of host memory for blocks" if gb else "no prefix cache"
        bars = axes.bar(x, values, 0.94 * _WIDTH, color=colour, label=label)
        axes.bar_label(bars, [_short(v) for v in values], padding=4, fontsize=6.5)
        if column == "link_tb" and gb:
            axes.plot(x, [r["blocks_tb"] for r in here], "D", color=ORANGE, markersize=5,
                      markeredgecolor=INK, label="of it, blocks")  # fmt: skip
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.set_xticks(
        list(where.values()), [chip.replace(", ", "\n") for _, chip in places], fontsize=7.5
    )
    weights = list(dict.fromkeys(name for name, _ in places))
    for name in weights:
        middle = float(np.mean([x for (chip_name, _), x in where.items() if chip_name == name]))
        axes.text(middle, -0.17, name, transform=axes.get_xaxis_transform(), ha="center",
                  va="top", color=INK)  # fmt: skip


def _short(value: float) -> str:
    digits = 2 if value >= 0.01 else 1
    return (
        f"{value:.0f}" if value >= 10 else f"{value:.2f}" if value >= 1 else f"{value:.{digits}g}"
    )
