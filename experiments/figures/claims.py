"""Predicted numbers over the printed ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

import numpy as np
from matplotlib.figure import Figure

from experiments.claims import PAPERS, Row
from experiments.claims.compare import TOLERANCE
from experiments.figures.style import BLUE, GREY, INK, VERMILION, canvas

__all__ = ["CAPTION", "draw_claims"]

CAPTION: Final = (
    "Each dot is a number that a paper prints and that nothing here was chosen by: ours over the "
    "printed one. Blue: agrees, within 20 % (grey) or on the printed side of a bound. Shares from "
    "50 % on are compared by what they lack to 100 %. Triangles: off the scale."
)
_WIDEST: Final = 16.0  # ratio at both ends of the scale
_BINS: Final = 64  # of the scale; dots of one bin are stacked
_STEP: Final = 0.11  # rows; height of a dot


def draw_claims(rows: Sequence[Row]) -> Figure:
    """Draw a dot for each out-of-sample number: ours over printed."""
    shown = [
        (row.claim.system, row.comparison.ratio, bool(row.agrees))
        for row in rows
        if row.status == "out-of-sample" and row.comparison and row.comparison.ratio is not None
    ]
    systems = [system for system in PAPERS if any(system == name for name, *_ in shown)]
    figure, (axes,) = canvas(7.0, 0.75 + 0.6 * len(systems))
    axes.axvspan(1 - TOLERANCE, 1 + TOLERANCE, color=GREY, alpha=0.22, lw=0)
    axes.axvline(1, color=GREY, linewidth=0.8)
    for place, system in enumerate(systems):
        stacked: Counter[int] = Counter()
        mine = sorted((max(ratio, 0.0), agrees) for name, ratio, agrees in shown if name == system)
        for ratio, agrees in mine:
            x = float(np.clip(ratio, 0.8 / _WIDEST, 1.25 * _WIDEST))
            is_off = not 1 / _WIDEST <= ratio <= _WIDEST
            level = stacked[bin_ := round(np.log2(x) / np.log2(_WIDEST) * _BINS / 2)]
            stacked[bin_] += 1
            axes.plot(
                x, place - (level + 1) // 2 * _STEP * (1 if level % 2 else -1),
                ("<" if ratio < 1 else ">") if is_off else "o", markersize=4.2,
                color=BLUE if agrees else VERMILION, alpha=0.85, markeredgewidth=0,
            )  # fmt: skip
        axes.axhline(place + 0.5, color="#E3E3E3", linewidth=0.8)
    ticks = [1 / 16, 1 / 8, 1 / 4, 1 / 2, 1, 2, 4, 8, 16]
    axes.set_xscale("log", base=2)
    axes.set_xticks(ticks, [f"1/{1 / t:g}" if t < 1 else f"{t:g}×" for t in ticks])
    axes.set(xlim=(0.7 / _WIDEST, 1.4 * _WIDEST), ylim=(len(systems) - 0.5, -0.5))
    axes.set_yticks(range(len(systems)), [PAPERS[system] for system in systems], color=INK)
    axes.tick_params(axis="y", length=0, labelsize=10)
    axes.spines["left"].set_visible(False)
    axes.grid(visible=False)
    axes.set_xlabel("ours / printed")
    return figure
