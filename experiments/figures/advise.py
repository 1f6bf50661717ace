"""Price of compared fleets against load left."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.transforms import offset_copy

from experiments.figures.style import COLOURS, GREY, INK, VERMILION, canvas, finish

__all__ = ["draw_advice"]

type _Mark = Mapping[str, Any]

_FAILS = 0.8  # place of fleets that do not serve on an axis of loads
_APART = 7.0  # points between marks at one place
_NEAR = 0.16  # share of the width within which two labels are at different heights


def draw_advice(
    marks: Sequence[_Mark], *, loads: Sequence[float] = (), goal: float | None = None,
    title: str, caption: str,
) -> Figure:  # fmt: skip
    """Draw a mark a fleet, the frontier, and each chip's best."""
    figure, (axes,) = canvas(7.2, 4.4)

    def height(one: _Mark) -> float:
        return float(one.get("serves_load", _FAILS) if loads else 100 * one["met"])

    systems = sorted({one["system"] for one in marks})
    colour = dict(zip(systems, COLOURS * len(systems), strict=False))
    places: dict[tuple[float, float], list[_Mark]] = {}
    for one in marks:
        places.setdefault((one["usd_per_hour"], height(one)), []).append(one)
    for system in systems:  # in the legend by name
        axes.plot([], [], "o", color=colour[system], markersize=6.5, label=system)
    for (usd, y), here in places.items():
        here.sort(key=lambda one: one["system"])
        for k, one in enumerate(here):
            beside = (k - (len(here) - 1) / 2) * _APART
            axes.plot(
                [usd], [y], "xo"[y != _FAILS or not loads], color=colour[one["system"]],
                markersize=6.5, clip_on=False,
                transform=offset_copy(axes.transData, figure, x=beside, units="points"),
                zorder=3,
            )  # fmt: skip
    serving = [(usd, y) for usd, y in places if not loads or y != _FAILS]
    prices = sorted({usd for usd, _ in serving})
    best = [max(y for price, y in serving if price <= usd) for usd in prices]
    right = 1.18 * max(usd for usd, _ in places)
    axes.step([*prices, right], [*best, best[-1]], where="post", color=GREY, linewidth=1.2,
              label="most for the price", zorder=1)  # fmt: skip
    axes.set(xlabel="price (US dollars an hour)", xlim=(0, right))
    if loads:
        axes.set_yscale("log", base=2)
        names = [f"{n:g}x" for n in (1.0, *loads[:-1])]
        fails = any(y == _FAILS for _, y in places)
        axes.set_yticks([*([_FAILS] * fails), 1.0, *loads],
                        [*(["fails"] * fails), *names, f"{loads[-1]:g}x or more"])  # fmt: skip
        axes.minorticks_off()
        top = max(y for _, y in places)
        axes.set(
            ylabel="load that it serves, of the workload's",
            ylim=(0.88 * (_FAILS if fails else 1.0), 1.2 * max(2.0, top)),
        )
    else:
        axes.set(ylabel="requests on target (%)", ylim=(0, 105))
    if goal is not None:
        axes.axhline(100 * goal, color=VERMILION, linestyle="--", linewidth=1.2, label="goal")
    _label(axes, marks, height, right)
    return finish(figure, title, caption, legend=axes)


def _label(
    axes: Axes, marks: Sequence[_Mark], height: Callable[[_Mark], float], right: float
) -> None:
    firsts: dict[str, _Mark] = {}
    for one in marks:
        firsts.setdefault(one["chip"], one)
    labelled: list[tuple[float, float, int]] = []
    for one in sorted(firsts.values(), key=lambda one: one["usd_per_hour"]):
        usd, y = one["usd_per_hour"], height(one)
        taken = {level for x, mark_y, level in labelled
                 if mark_y == y and usd - x < _NEAR * right}  # fmt: skip
        level = next(k for k in (1, -1, 2, -2, 3, -3, 4, -4, 5) if k not in taken)
        labelled.append((usd, y, level))
        axes.annotate(
            f"{one['chips']} x {one['chip']}", (usd, y), xytext=(0, 11 * level - 2 * (level < 0)),
            textcoords="offset points", ha="center", va="center", fontsize=8, color=INK,
        )  # fmt: skip
