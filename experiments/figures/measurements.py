"""Predicted against measured times."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

import numpy as np
from matplotlib.figure import Figure

from experiments.figures.style import COLOURS, GREY, canvas, finish

__all__ = ["draw_measured"]

_COLUMNS = 3


class Compared(Protocol):
    """Predicted and measured time of one operation."""

    @property
    def chip(self) -> str: ...
    @property
    def op(self) -> str: ...
    @property
    def in_sample(self) -> bool: ...
    @property
    def measured_us(self) -> float: ...
    @property
    def predicted_us(self) -> float: ...


def draw_measured(rows: Sequence[Compared]) -> Figure:
    """Draw every row: filled marks were fitted to, open not."""
    chips = sorted({row.chip for row in rows})
    kinds = list(dict.fromkeys(_kind(row.op) for row in rows))
    down = math.ceil(len(chips) / _COLUMNS)
    figure, axes = canvas(3.6 * _COLUMNS, 3.4 * down + 1.0, rows=down, columns=_COLUMNS)
    panels = np.atleast_1d(np.asarray(axes, object)).ravel()
    for panel in panels[len(chips) :]:
        panel.set_visible(False)
    for panel, chip in zip(panels, chips, strict=False):
        chip_rows = [row for row in rows if row.chip == chip]
        ends = [f(min(r.measured_us, r.predicted_us) if f is min else
                  max(r.measured_us, r.predicted_us) for r in chip_rows)
                for f in (min, max)]  # fmt: skip
        panel.plot(ends, ends, color=GREY, linewidth=1)
        for kind in kinds:
            colour = COLOURS[kinds.index(kind) % len(COLOURS)]
            for fitted in (False, True):
                some = [r for r in chip_rows if _kind(r.op) == kind and r.in_sample is fitted]
                panel.plot(
                    [r.measured_us for r in some], [r.predicted_us for r in some], "o",
                    markersize=2.6, color=colour, markerfacecolor=colour if fitted else "none",
                    markeredgewidth=0.6, label=kind if not fitted else f"_{kind}",
                )  # fmt: skip
        panel.set(xscale="log", yscale="log", xlabel="measured (µs)", ylabel="predicted (µs)")
        panel.set_title(chip)
    panels[0].legend(loc="upper left", fontsize=6.5)
    caption = (
        "Public measurements of single kernels and of a token of whole engines; filled marks are "
        "rows that constants of the chip were fitted to."
    )
    return finish(figure, "Cost model against public measurements", caption)


def _kind(op: str) -> str:
    if op.startswith("layer"):
        return "layer, Vidur"
    return op if " " not in op or op.endswith("attention") else "engine, a token"
