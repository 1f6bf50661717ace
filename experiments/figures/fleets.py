"""Figure of fleets with more models than slices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.figures.style import (
    BLUE,
    GREEN,
    ORANGE,
    PURPLE,
    SKY,
    VERMILION,
    Tables,
    canvas,
    finish,
    rows_of,
)

__all__ = ["draw_fleets"]

LINES: dict[str, tuple[str, str]] = {
    "plus": (BLUE, "-"),
    "plus, 4x24gb": (BLUE, "--"),
    "plus, nothing kept": (SKY, "-"),
    "c2cserve": (GREEN, "-"),
    "letter": (GREEN, ":"),
    "ServerlessLLM, 4x24gb, 50 ms": (ORANGE, "-"),
    "ServerlessLLM, 4x24gb": (ORANGE, "--"),
    "ServerlessLLM, whole GPU": (ORANGE, ":"),
    "layer staging": (PURPLE, "-"),
}
FEWEST_PERCENT = 0.01  # lower end of the axis of missed requests; 0 is drawn on it
LEAST_S = 0.02  # lower end of the axis of TTFT
OWN_DRAW = "own"  # the slice's own draw, not capped


def draw_fleets(tables: Tables, caption: str) -> Figure:
    """Draw missed targets and p99 TTFT over the number of models, and over a slice's link rate."""
    rows = rows_of(tables["systems"])
    loads = sorted({r["compression"] for r in rows})
    caps = sorted({r["draw_gbps"] for r in rows if r["draw_gbps"] is not None})
    columns = len(loads) + bool(caps)
    figure, panels = canvas(
        4.0 * columns + 2.0, 6.4, rows=2, columns=columns, sharex="col", sharey="row"
    )
    for column, load in enumerate(loads):
        chosen = [r for r in rows if r["compression"] == load and r["draw_gbps"] is None]
        _pair(panels, column, columns, chosen, "models", sorted({r["models"] for r in chosen}))
        panels[column].set_title(f"Compression {load:g}", fontsize=9.5)
        panels[columns + column].set(xlabel="models")
    if caps:
        at = {(r["compression"], r["models"]) for r in rows if r["draw_gbps"] is not None}
        chosen = [
            {**r, "draw_gbps": r["draw_gbps"] or OWN_DRAW}
            for r in rows
            if (r["compression"], r["models"]) in at
        ]
        _pair(panels, columns - 1, columns, chosen, "draw_gbps", [*caps, OWN_DRAW])
        load, models = next(iter(at))
        panels[columns - 1].set_title(f"{models} models, compression {load:g}", fontsize=9.5)
        panels[-1].set(xlabel="a slice's draw from the link (GB/s)")
    panels[0].set(ylabel=f"requests off target (%; none: {FEWEST_PERCENT:g})")
    panels[0].set(yscale="log", ylim=(0.8 * FEWEST_PERCENT, 100.0))
    highest = max(r["ttft_p99_s"] for r in rows)
    panels[columns].set(ylabel="p99 TTFT (s)", yscale="log", ylim=(LEAST_S, 2.0 * highest))
    return finish(figure, "More models than slices", caption, panels[0], max(2, columns))


def _pair(
    panels: Sequence[Axes],
    column: int,
    columns: int,
    rows: Sequence[dict[str, Any]],
    over: str,
    values: Sequence[Any],
) -> None:
    """Draw both panels of a column: one line for each system over the values of a setting."""
    top, below = panels[column], panels[columns + column]
    for order, (name, (colour, style)) in enumerate(LINES.items()):
        # the first lines are on top; lines below them are wider
        look: dict[str, Any] = {
            "color": colour, "linestyle": style, "label": name, "zorder": 3.0 - 0.01 * order,
        }  # fmt: skip
        width = 1.8 if colour != PURPLE else 4.5
        found = {r[over]: r for r in rows if r["system"] == name}
        at = [k for k, value in enumerate(values) if value in found]
        if not at:
            continue
        here = [found[values[k]] for k in at]
        missed = [max(FEWEST_PERCENT, 100.0 - r["both_percent"]) for r in here]
        late = [max(LEAST_S, r["ttft_p99_s"]) for r in here]
        for axes, y in ((top, missed), (below, late)):
            axes.plot(at, y, marker="o", markersize=3.5, linewidth=width, **look)
    below.set_xticks(range(len(values)), [v if isinstance(v, str) else f"{v:g}" for v in values])
    below.axhline(1.0, color=VERMILION, linestyle=":", linewidth=1.2)
