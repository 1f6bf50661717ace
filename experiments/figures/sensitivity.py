"""Smallest changes that mend misses, sensitivity of headlines, results without a fitted figure."""

from __future__ import annotations

import math
from typing import Any

from matplotlib.figure import Figure

from experiments.figures.style import BLUE, GREY, ORANGE, SKY, Tables, canvas, finish, rows_of

__all__ = ["draw_left_out", "draw_takes", "draw_tornado"]

LEAST = 0.01  # of the logarithm: less is not shown
TICKS = (1 / 16, 1 / 4, 1 / 2, 1, 2, 4, 16)
LONGEST = 60  # characters of the two values that a line has room for
LABELS = ("1/16", "1/4", "1/2", "1", "2", "4", "16")


def draw_takes(tables: Tables, caption: str) -> Figure:
    """Draw the smallest factors that mend each missed claim, the nearest one on top."""
    rows = rows_of(tables["takes"])
    claims = list(dict.fromkeys(r["claim"] for r in rows))
    lines: list[tuple[str, dict[str, Any] | None]] = []
    for name in claims:
        lines.append((name, None))
        lines += [("", r) for r in rows if r["claim"] == name][:3]
    figure, (axes,) = canvas(9.6, 1.9 + 0.24 * max(4, len(lines)))
    for y, (name, row) in enumerate(lines):
        if row is None:
            (first, *_) = rows_of(tables["takes"], claim=name)
            text = f"{name.removeprefix('c2cserve.')}: "
            printed, ours = first["published"], first["ours"]
            long = len(printed) + len(ours) > LONGEST
            text += "see the report" if long else f"paper {printed}, ours {ours}"
            axes.text(1 / 20, y, text, fontsize=8, fontweight="bold", va="center")
        elif row["factor"] is None:
            axes.text(1, y, "no number alone within a factor of 16", fontsize=8, color=GREY,
                      va="center", ha="center")  # fmt: skip
        else:
            colour = BLUE if row["factor"] > 1 else ORANGE
            axes.plot([1, row["factor"]], [y, y], color=colour, linewidth=3)
            axes.plot(row["factor"], y, "o", color=colour, markersize=6)
            right = row["factor"] > 1
            axes.annotate(
                f"{row['knob']} x {row['factor']:.3g}", (row["factor"], y), fontsize=8,
                xytext=(7 if right else -7, 0), textcoords="offset points", va="center",
                ha="left" if right else "right",
            )  # fmt: skip
    if not lines:
        axes.text(1, 0, "every claim of the figure agrees", ha="center", va="center")
    axes.axvline(1, color=GREY, linewidth=0.8)
    axes.set_xscale("log", base=2)
    axes.set(xlim=(1 / 24, 24), ylim=(max(1, len(lines)) - 0.4, -0.6))
    axes.set_xticks(TICKS, LABELS)
    axes.set_yticks([])
    axes.set_xlabel("factor on the number, all else as it is")
    axes.grid(visible=True, axis="x")
    axes.grid(visible=False, axis="y")
    axes.spines["left"].set_visible(False)
    of = dict.fromkeys(c.removeprefix("c2cserve.").partition(".")[0] for c in claims)
    title = "Smallest changes that mend the misses"
    return finish(figure, f"{title}: {', '.join(of)}" if of else title, caption)


def draw_left_out(tables: Tables, caption: str) -> Figure:
    """Draw our value over the published one, with each fit (hollow) and without it (filled)."""
    rows = rows_of(tables["folds"])
    lines: list[tuple[str, dict[str, Any] | None]] = []
    for fold in dict.fromkeys(r["left_out"] for r in rows):
        lines += [(fold, None), *((r["claim"], r) for r in rows if r["left_out"] == fold)]
    figure, (axes,) = canvas(7.2, 2.2 + 0.24 * len(lines))
    for y, (_, row) in enumerate(lines):
        if row is None:
            continue
        fitted, without = row["ratio"], row["ratio_without"]
        axes.plot([fitted, without], [y, y], color=GREY, linewidth=1.4)
        axes.plot(fitted, y, "o", color=BLUE, markerfacecolor="white")
        axes.plot(without, y, "o", color=BLUE if row["agrees_without"] else ORANGE)
    axes.axvline(1, color=GREY, linewidth=0.8)
    axes.axvspan(0.8, 1.2, color=GREY, alpha=0.15, linewidth=0)
    axes.set_xscale("log", base=2)
    ratios = [r[k] for r in rows for k in ("ratio", "ratio_without")]
    low, high = 0.8 * min([0.5, *ratios]), 1.25 * max([2.0, *ratios])
    ticks = [(t, label) for t, label in zip(TICKS, LABELS, strict=True) if low < t < high]
    axes.set_xticks([t for t, _ in ticks], [label for _, label in ticks])
    axes.set_xlim(low, high)
    axes.set_yticks(
        range(len(lines)),
        [f"without {n}" if r is None else n.removeprefix("c2cserve.") for n, r in lines],
        fontsize=8,
    )
    for label, (_, row) in zip(axes.get_yticklabels(), lines, strict=True):
        label.set_fontweight("bold" if row is None else "normal")
    axes.set_ylim(len(lines) - 0.4, -0.6)
    axes.grid(visible=True, axis="x")
    axes.set_xlabel("ours over published; hollow: fitted, filled: left out; band: 20%")
    return finish(figure, "Leave one figure out", caption)


def draw_tornado(tables: Tables, caption: str) -> Figure:
    """Draw the change of each headline at half and twice the inputs that move it most."""
    rows = rows_of(tables["headlines"])
    names = list(dict.fromkeys(r["headline"] for r in rows))
    columns = 3
    deep = math.ceil(len(names) / columns)
    figure, panels = canvas(11.4, 1.4 + 2.5 * deep, columns=columns, rows=deep)
    for axes, name in zip(panels, names, strict=False):
        mine = rows_of(tables["headlines"], headline=name)
        reach = {
            knob: max(abs(math.log(r["ratio"])) for r in mine if r["knob"] == knob)
            for knob in dict.fromkeys(r["knob"] for r in mine)
        }
        shown = [k for k in sorted(reach, key=lambda k: -reach[k]) if reach[k] > LEAST][:6]
        for y, knob in enumerate(shown):
            for r in (r for r in mine if r["knob"] == knob):
                # one above the other, as both may move a headline in the same direction
                doubled = r["factor"] > 1
                axes.barh(y + (-0.16 if doubled else 0.16), r["ratio"] - 1, left=1, height=0.32,
                          color=BLUE if doubled else SKY)  # fmt: skip
        axes.set_yticks(range(len(shown)), shown, fontsize=8)
        axes.set_ylim(max(1, len(shown)) - 0.4, -0.6)
        axes.axvline(1, color=GREY, linewidth=0.8)
        axes.set_xscale("log", base=2)
        most = max([math.exp(reach[k]) for k in shown], default=1.1)
        axes.set_xlim(0.93 / most, 1.07 * most)
        ticks = [t for t in (1 / 8, 1 / 4, 1 / 2, 0.8, 0.9, 1, 1.1, 1.25, 2, 4, 8)
                 if 0.93 / most <= t <= 1.07 * most]  # fmt: skip
        if most > 1.5:
            ticks = [t for t in ticks if t not in (0.8, 0.9, 1.1, 1.25)]
        axes.set_xticks(ticks, [f"{t:g}" for t in ticks])
        axes.minorticks_off()
        axes.grid(visible=True, axis="x")
        axes.grid(visible=False, axis="y")
        title = f"{name}: {mine[0]['base']:.3g} {mine[0]['unit']}"
        axes.set_title(title, fontsize=8, loc="right")  # over the labels rather than off the page
    for axes in panels[len(names) :]:
        axes.set_visible(False)
    panels[0].barh([-9], [0.1], color=BLUE, label="number doubled")
    panels[0].barh([-9], [0.1], color=SKY, label="number halved")
    return finish(figure, "Sensitivity of the headlines", caption, panels[0])
