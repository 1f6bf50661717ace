"""Figure of the prediction's errors among equal live runs."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator

from experiments.figures.style import BLUE, GREY, INK, VERMILION, canvas, finish, look
from experiments.lab.bench.prediction.verdict import Judged
from experiments.serving.live_run_simulation import Comparison

__all__ = ["draw"]

_TICKS = (-50, -20, -10, -5, 0, 5, 10, 20, 50, 100, 200)


def draw(
    loads: Sequence[float],
    runs: Sequence[Sequence[Sequence[Comparison]]],
    judgements: Sequence[Judged],
    first_line: str,
) -> Figure:
    """Return the figure, a panel for each load."""
    with look():
        figure, axes = canvas(3.6 * len(loads) + 0.6, 3.9, columns=len(loads), sharey=True)
        for axis, load, these in zip(axes, loads, runs, strict=True):
            mine = [one for one in judgements if one.load == load]
            for k, one in enumerate(mine):
                spread = [100 * (run[k].live_s / one.live_s - 1.0) for run in these]
                axis.plot([k] * len(spread), spread, "o", color=GREY, ms=4, alpha=0.7)
                colour = BLUE if one.is_met else VERMILION
                axis.plot([k], [100 * one.error], "D", color=colour, ms=6, zorder=4)
                if one.target is not None:
                    axis.fill_between(
                        [k - 0.4, k + 0.4], -100 * one.target, 100 * one.target,
                        color=INK, alpha=0.12, lw=0,
                    )  # fmt: skip
            axis.axhline(0.0, color=INK, lw=0.8)
            axis.set_yscale("symlog", linthresh=10)
            axis.yaxis.set_major_locator(FixedLocator(_TICKS))
            axis.yaxis.set_major_formatter("{x:g}")
            names = [f"{one.name.removesuffix('_s')}\np{one.share}" for one in mine]
            axis.set_xticks(range(len(mine)), names)
            axis.set_title(f"at {100 * load:g} % of the capacity")
        axes[0].set_ylabel("from the median of live runs, %")
        return finish(
            figure,
            "The live engine, predicted",
            f"{first_line}. Grey: live runs of the same requests. Diamonds: predicted from runs of "
            "another mix at another rate, vermilion where the error is beyond its target (band).",
        )
