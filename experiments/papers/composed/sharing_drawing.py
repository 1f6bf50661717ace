"""Figure of systems that share few GPUs."""

from __future__ import annotations

from itertools import cycle, product

from matplotlib.figure import Figure

from experiments.figures.style import COLOURS, Tables, canvas, finish, label_ends, rows_of

__all__ = ["draw_sharing"]


def draw_sharing(tables: Tables, caption: str) -> Figure:
    """Draw attainment over the models, a panel a chip."""
    every = rows_of(tables["systems"])
    load = max(r["compression"] for r in every)
    rows = [r for r in every if r["compression"] == load]
    chips = list(dict.fromkeys(r["chip"] for r in rows))
    sizes = sorted({r["models"] for r in rows})
    looks = cycle(product(("-", "--"), COLOURS))
    look = dict(zip(dict.fromkeys(r["system"] for r in rows), looks, strict=False))
    figure, panels = canvas(5.0 * len(chips), 4.4, columns=len(chips))
    for axes, chip in zip(panels, chips, strict=True):
        ends = []
        for name, (dash, colour) in look.items():
            line = [
                (sizes.index(r["models"]), r["both_percent"])
                for r in sorted(rows, key=lambda r: r["models"])
                if (r["chip"], r["system"]) == (chip, name) and r["fits"]
            ]
            if not line:
                continue
            axes.plot(*zip(*line, strict=True), dash, color=colour, marker="o", markersize=4,
                      clip_on=False)  # fmt: skip
            last = "" if line[-1][0] == len(sizes) - 1 else f", to {sizes[line[-1][0]]} models"
            ends.append((*line[-1], f"{name}{last}", colour))
        axes.set(title=chip, xlabel="models", ylim=(0.0, 100.0))
        axes.set_xticks(range(len(sizes)), [f"{n}" for n in sizes])
        label_ends(axes, ends)
    panels[0].set_ylabel("% within both targets")
    return finish(figure, "Many models on few GPUs", caption)
