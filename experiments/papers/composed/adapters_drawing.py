"""Figure of fine-tunes: adapters beside whole models."""

from __future__ import annotations

from itertools import cycle

from matplotlib.figure import Figure

from experiments.figures.style import COLOURS, GREY, INK, Tables, canvas, finish, rows_of

__all__ = ["draw_adapters"]


def draw_adapters(tables: Tables, caption: str) -> Figure:
    """Draw attainment over fine-tunes, a panel a number of bases."""
    rows = rows_of(tables["runs"])
    bases = sorted({r["bases"] for r in rows})
    sizes = sorted({r["models"] for r in rows})
    figure, panels = canvas(10.0, 4.6, columns=len(bases))
    adapters = dict.fromkeys(r["system"] for r in rows if not r["is_whole"])
    whole = dict.fromkeys(r["system"] for r in rows if r["is_whole"])
    looks = {
        **dict(zip(adapters, cycle((c, "-", "o") for c in COLOURS), strict=False)),
        **dict(zip(whole, cycle(((INK, "--", "s"), (GREY, "--", "D"))), strict=False)),
    }
    for axes, n in zip(panels, bases, strict=True):
        for name, (colour, dash, mark) in looks.items():
            line = [r for r in rows if r["system"] == name and (r["is_whole"] or r["bases"] == n)]
            line.sort(key=lambda r: r["models"])
            axes.plot(
                [r["models"] for r in line], [r["both_percent"] for r in line], dash, marker=mark,
                markersize=4, color=colour, label=name, clip_on=False,
            )  # fmt: skip
        axes.set_xscale("log")
        axes.set_xticks(sizes, [f"{size:,}" for size in sizes])
        axes.minorticks_off()
        axes.set(ylim=(0, 103), xlabel="fine-tunes", ylabel="requests within both targets (%)",
                 title="one base" if n == 1 else f"{n} bases")  # fmt: skip
    return finish(figure, "Fine-tunes on one GH200", caption, legend=panels[0], columns=2)
