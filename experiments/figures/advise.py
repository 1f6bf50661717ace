"""Price against latency of compared fleets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from matplotlib.figure import Figure

from experiments.figures.style import COLOURS, INK, canvas, finish

__all__ = ["draw_advice"]

_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")  # of chips; systems have colours
_PANELS = (("ttft_p99_s", 1.0, "TTFT p99 (s)"), ("tpot_p99_s", 1e3, "TPOT p99 (ms)"))


def draw_advice(rows: Sequence[Mapping[str, Any]], *, title: str, caption: str) -> Figure:
    """Draw the fleets that ran on all requests.

    Args:
      rows: one row a run: system, hardware, usd_per_hour, meets, is_whole, is_told and latencies.
      title: title above the axes.
      caption: text below the axes.
    """
    fleets: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for row in rows:
        if row["is_whole"] and row["ttft_p99_s"] is not None:
            name = (row.get("system", ""), row.get("fleet") or row.get("hardware", ""))
            key = (name, row.get("mig"), row["usd_per_hour"])
            fleets.setdefault(key, []).append(row)
    names = sorted({name for name, *_ in fleets})
    systems, chips = (list(dict.fromkeys(name[k] for name in names)) for k in (0, 1))
    colour = dict(zip(systems, COLOURS * len(systems), strict=False))
    marker = dict(zip(chips, _MARKERS * len(chips), strict=False))
    figure, axes = canvas(9.6, 4.2, columns=2)
    for panel, (column, factor, label) in zip(axes, _PANELS, strict=True):
        shown = set()
        for (name, _, usd), runs in fleets.items():
            value = factor * fmean(r[column] or 0.0 for r in runs)
            meets = all(r["meets"] for r in runs)
            panel.plot(
                [usd], [value], marker[name[1]], color=colour[name[0]], markersize=5,
                markerfacecolor=colour[name[0]] if meets else "white",
                label=" on ".join(filter(None, name)) if meets and name not in shown else None,
            )  # fmt: skip
            shown |= {name} if meets else set()
            if runs[0]["is_told"]:
                panel.plot(
                    [usd], [value], "o", markersize=9.5, markerfacecolor="none", color=INK,
                    markeredgewidth=1.1, label=None if INK in shown else "fewest chips that serve",
                )  # fmt: skip
                shown.add(INK)
        panel.set(xlabel="US dollars an hour", ylabel=label, xlim=(0, None))
        values = [factor * r[column] for runs in fleets.values() for r in runs if r[column]]
        if values and max(values) > 20 * min(values):
            panel.set_yscale("log")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside right upper", fontsize=8)
    return finish(figure, title, caption)
