"""Panels of the section `transformer`: shares of the limit by strategy, and requests in turn."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from matplotlib.axes import Axes

from experiments.bench.transformer.results import with_limits
from experiments.figures.style import BLUE, COLOURS, GREY, ORANGE
from experiments.gpu import Row

Panel = tuple[str, Callable[[Axes], None]]

_NAMES = (
    *("hybrid, chosen", "AsymGEMM", "SymGEMM", "hybrid int8", "hybrid int4"),
    *("staged", "resident", "resident, one executable"),
)


def name_of(row: Row) -> str:
    """Name the strategy of a step."""
    if row["linear"] != "hybrid":
        linear = str(row["linear"])
        return "resident, one executable" if linear == "resident_whole" else linear
    if row["weights"] != "bf16":
        return f"hybrid {row['weights']}"
    return {"0": "AsymGEMM", "1": "SymGEMM"}.get(str(row["split"]), "hybrid, chosen")


def panels(rows: Sequence[Row]) -> dict[str, Panel | None]:
    """Return what the figure of the section shows, None for what was not measured."""
    steps = with_limits(rows)
    return {
        "decode": _bars([r for r in steps if r["what"] == "decode"], "sequences", "Decode"),
        "prefill": _bars([r for r in steps if r["what"] == "prefill"], "tokens", "Prefill"),
        "switching": _requests(rows),
    }


def _bars(steps: Sequence[Row], unit: str, title: str) -> Panel | None:
    if not steps:
        return None

    def draw(axes: Axes) -> None:
        sizes = sorted({r["rows"] for r in steps})
        there = {name_of(r) for r in steps}
        names = [name for name in _NAMES if name in there]
        width = 0.8 / len(names)
        colours = dict(zip(_NAMES, (*COLOURS, GREY, "black"), strict=False))
        for number, name in enumerate(names):
            mine = {r["rows"]: r["fraction"] for r in steps if name_of(r) == name}
            at = [sizes.index(size) + (number - (len(names) - 1) / 2) * width for size in mine]
            axes.bar(at, list(mine.values()), width, color=colours[name], label=name)
        axes.axhline(1.0, color=GREY, linestyle=":")
        axes.set_xticks(range(len(sizes)), [str(size) for size in sizes])
        axes.set(xlabel=unit, ylabel="limit / time", ylim=(0, 1.5))  # room for the names
        axes.set_yticks([0, 0.25, 0.5, 0.75, 1.0])
        axes.legend(fontsize=7, ncols=2, loc="upper left")

    return title, draw


def _requests(rows: Sequence[Row]) -> Panel | None:
    found = sorted(
        (r for r in rows if r["status"] == "ok" and r.get("what") == "switch"),
        key=lambda r: int(r["request"]),
    )
    if not found:
        return None

    def draw(axes: Axes) -> None:
        colours = [BLUE if r["to"] == "first" else ORANGE for r in found]
        bars = axes.bar(range(len(found)), [r["first_token_s"] for r in found], color=colours)
        axes.bar_label(bars, [f"{r['first_token_s']:.2g}" for r in found], fontsize=7.5)
        axes.set_xticks(
            range(len(found)),
            [f"{r['to']}\n{r['compiles']} compiled" for r in found],
            fontsize=6.5,
        )
        axes.set(ylabel="s to the first token", yscale="log", xlabel="requests in turn, to model")

    return "Two models", draw
