"""Printed numbers against ours, for all claims in one picture."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from matplotlib.figure import Figure

from experiments.claims import Row
from experiments.claims.compare import TOLERANCE
from experiments.claims.nulls import pairs_of
from experiments.figures.style import COLOURS, GREY, bare_picture, canvas, finish, look

__all__ = ["CAPTION", "claims_picture", "draw_claims"]

CAPTION: Final = (
    "Each number in its own unit; grey: within 20 %. Filled: nothing was chosen with the number in "
    "view. Hollow: in-sample, or a repeat of another. Identities and what is not above 0 are left "
    "out."
)

_HOLLOW = ("in-sample", "repeat")


def draw_claims(rows: Sequence[Row]) -> Figure:
    """Draw our numbers over the printed ones; predictions are filled, other results hollow."""
    figure, (axes,) = canvas(6.4, 5.2)
    shown = [row for row in rows if row.comparison is not None and row.comparison.ratio is not None]
    positive: list[float] = []
    systems = dict.fromkeys(row.claim.system for row in shown)
    for system, colour in zip(systems, COLOURS, strict=False):
        label: str | None = system
        for is_hollow in (False, True):
            mine = [
                pair for row in shown
                if row.claim.system == system and row.status in (*_HOLLOW, "out-of-sample")
                and (row.status in _HOLLOW) is is_hollow
                for pair in pairs_of(row) if min(pair) > 0.0
            ]  # fmt: skip
            if not mine:
                continue
            printed, ours = zip(*mine, strict=True)
            positive += [*printed, *ours]
            axes.scatter(
                printed, ours, s=22, edgecolors=colour, linewidths=1.0,
                facecolors="none" if is_hollow else colour, alpha=0.6 if is_hollow else 0.85,
                label=label,
            )  # fmt: skip
            label = None
    axes.set_xscale("log")
    axes.set_yscale("log")
    if positive:
        ends = np.array([min(positive) / 2, max(positive) * 2])
        axes.fill_between(
            ends, (1 - TOLERANCE) * ends, (1 + TOLERANCE) * ends, color=GREY, alpha=0.25, lw=0
        )
        axes.legend(loc="upper left")
    axes.set_xlabel("printed")
    axes.set_ylabel("ours")
    return finish(figure, "Printed numbers and ours", CAPTION)


def claims_picture(rows: Sequence[Row]) -> bytes:
    """Return the picture as WebP without title and caption, for a page that has both."""
    with look():
        return bare_picture(draw_claims(rows))
