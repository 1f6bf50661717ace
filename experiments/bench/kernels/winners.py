"""The map of the fastest dataflow over rows and SMs, measured and predicted."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import BoundaryNorm, ListedColormap

from experiments.bench.kernels.analysis import Bounds, cells, complete, dataflow, predicted_s
from experiments.gpu import Row

SHAPE = (4096, 16384)  # K, N
NAMES = ("sym 1", "sym 2", "sym 4", "sym 8", "asym", "mix")
TIE = 1.02
"""Choices within this factor of the fastest count as equal: the first of `NAMES` is shown."""

Panel = tuple[str, Callable[[Axes], None]]
Map = dict[tuple[int, int], str]
"""Winner by (M, SMs)."""


def winner(times: Sequence[tuple[str, float]]) -> str:
    """Return the first of `NAMES` that is within `TIE` of the fastest."""
    limit = TIE * min(time for _, time in times)
    near = {name for name, time in times if time <= limit}
    return next(name for name in NAMES if name in near)


def measured_map(grid: Sequence[Row]) -> Map:
    """Return who was fastest, where both pure dataflows were measured."""
    found: Map = {}
    for (k, n, m, sms), rows in cells(grid).items():
        hybrid = [r for r in rows if r["what"] == "hybrid"]
        if (k, n) == SHAPE and complete(hybrid):
            found[m, sms] = winner([(dataflow(r), float(r["time_s"])) for r in hybrid])
    return found


def predicted_map(grid: Sequence[Row], bounds: Bounds) -> Map:
    """Return who should be fastest among the same choices."""
    found: Map = {}
    for (k, n, m, sms), rows in cells(grid).items():
        hybrid = [r for r in rows if r["what"] == "hybrid"]
        if (k, n) == SHAPE and complete(hybrid):
            found[m, sms] = winner([(dataflow(r), predicted_s(r, bounds)) for r in hybrid])
    return found


def measured(grid: Sequence[Row]) -> Panel | None:
    """Return the panel of what was measured."""
    found = measured_map(grid)
    return ("Measured", lambda axes: _draw(axes, found)) if found else None


def predicted(grid: Sequence[Row], bounds: Bounds | None) -> Panel | None:
    """Return the panel of the prediction, for the cells that were measured."""
    found = predicted_map(grid, bounds) if bounds is not None else {}
    if not found:
        return None
    actual = measured_map(grid)
    same = sum(found[at] == name for at, name in actual.items())
    return f"Predicted, {same} of {len(actual)} the same", lambda axes: _draw(axes, found)


def _draw(axes: Axes, found: Map) -> None:
    rows, sms = sorted({m for m, _ in found}), sorted({s for _, s in found})
    values = np.full((len(sms), len(rows)), np.nan)
    for (m, s), name in found.items():
        values[sms.index(s), rows.index(m)] = NAMES.index(name)
    colours = ListedColormap(["#56B4E9", "#0072B2", "#004C76", "#00263B", "#E69F00", "#009E73"])
    norm = BoundaryNorm(np.arange(-0.5, len(NAMES)), len(NAMES))
    picture = axes.imshow(values, cmap=colours, norm=norm, aspect="auto", origin="lower")
    axes.set_xticks(range(len(rows)), [str(m) for m in rows], rotation=60)
    axes.set_yticks(range(len(sms)), [str(s) for s in sms])
    axes.set(xlabel="rows M", ylabel="SMs")
    axes.grid(visible=False)
    bar = axes.figure.colorbar(picture, ax=axes, ticks=range(len(NAMES)), shrink=0.8)
    bar.ax.set_yticklabels(NAMES)
