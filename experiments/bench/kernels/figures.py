"""Figures of the benchmark, beside the papers' where they measured the same.

A panel without rows is left out and named; a figure without panels is not written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from experiments.bench.kernels import analysis, winners
from experiments.bench.kernels.rivals import RIVALS
from experiments.bench.transformer import figures as transformer
from experiments.figures.style import (
    BLUE,
    COLOURS,
    GREEN,
    GREY,
    ORANGE,
    PURPLE,
    VERMILION,
    canvas,
    finish,
    look,
    mark_published,
)
from experiments.gpu import Row

FIG4 = (4096, 16384, 10240)  # K, N, M
PUBLISHED_MS = {"asym": 4.0, "sym 1": 16.4}
"""C2CServe Fig. 4(a), GH200, whole GPU: claims c2cserve.fig4a.full_gpu.*."""

Rows = Mapping[str, Sequence[Row]]
Panel = tuple[str, Callable[[Axes], None]]


def draw_all(
    rows: Rows, folder: Path, *, dry_run: bool = False
) -> Iterable[tuple[Path, tuple[str, ...]]]:
    """Draw every figure that has a panel; yield its file and the panels that it lacks."""
    grid = analysis.with_limits(list(rows.get("kernels", ())))
    typical = analysis.typical(analysis.bounds_by_run(rows.get("kernels", ())).values())
    figures: dict[str, tuple[str, str, dict[str, Panel | None]]] = {
        "fig4": (
            "Beside Fig. 4: dataflows at M=10240, K=4096, N=16384",
            "Diamonds: the paper's latencies on a GH200, whose link is seven times as fast.",
            {
                "latency by SMs": _latency(grid),
                "latency by alpha": _alpha(grid),
                "rivals": _rivals(grid),
            },
        ),
        "fig5": (
            "Beside Fig. 5: AsymGEMM over N and M",
            "TFLOP/s; the paper prints trends only: both grow with N, with M.",
            {
                "over N": _shape(grid, "n", k=4096, m=4096),
                "over M": _shape(grid, "m", k=4096, n=16384),
            },
        ),
        "fig6": (
            "Beside Fig. 6: streams that share the link",
            "Groups of SMs of one launch emulate slices. The paper's gaps are of pairs of models.",
            {
                "groups of SMs": _groups(rows.get("contention", ())),
                "processes": _processes(rows.get("contention", ())),
            },
        ),
        "fig8": (
            "Beside Fig. 8: AsymGEMM's M tile at M=10240, K=4096, N=16384",
            "The paper prints trends only: fewer reductions into O with a taller tile.",
            {"M tile": _m_tile(grid)},
        ),
        "reads": (
            "Reading host memory by TMA, nothing computed",
            "Box of a load, CTAs that share it by multicast, and number of SMs that load.",
            {"by box": _boxes(rows.get("facts", ())), "by SMs": _by_sms(rows.get("facts", ()))},
        ),
        "limits": (
            "Share of the largest limit reached by the best choice",
            "Limits measured in the same run: weights over the link, activations, operations.",
            {"by M": _fractions(grid)},
        ),
        "winners": (
            "Who wins where: fastest dataflow over rows and SMs, K=4096, N=16384",
            "Prediction: counted bytes and tile steps at measured rates, nothing fitted.",
            {
                "measured": winners.measured(grid),
                "predicted": winners.predicted(grid, typical),
            },
        ),
        "transformer": (
            "A model of 8B shape by where its weights are and who reads them",
            "Limits measured in the same run: projections over the link, or in device memory.",
            transformer.panels(rows.get("transformer", ())),
        ),
    }
    for name, (title, caption, panels) in figures.items():
        there = {label: panel for label, panel in panels.items() if panel is not None}
        without = tuple(label for label in panels if label not in there)
        if not there:
            continue
        with look():
            width = max(4.6 * len(there) + 0.6, 9.0)  # of one panel too, for the title
            figure, axes = canvas(width, 4.2, columns=len(there))
            for ax, (name_of, draw) in zip(axes, there.values(), strict=True):
                ax.set_title(name_of)
                draw(ax)
            missing = f" Unmeasured and left out: {', '.join(without)}." if without else ""
            heading = f"DRY RUN, NO MEASUREMENT. {title}" if dry_run else title
            path = folder / f"{name}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            finish(figure, heading, caption + missing).savefig(path, metadata={"Software": None})
        yield path, without


def _at(grid: Iterable[Row], **where: Any) -> list[Row]:
    return [row for row in grid if all(row.get(k) == v for k, v in where.items())]


def _fig4(grid: Iterable[Row]) -> list[Row]:
    k, n, m = FIG4
    return _at(grid, k=k, n=n, m=m)


def _latency(grid: Iterable[Row]) -> Panel | None:
    rows = [r for r in _fig4(grid) if r["what"] == "hybrid" and r["alpha"] in (0.0, 1.0)]
    if not rows:
        return None

    def draw(axes: Axes) -> None:
        for colour, name in zip(
            COLOURS, ("asym", "sym 1", "sym 2", "sym 4", "sym 8"), strict=False
        ):
            points = sorted(
                (r["sm_limit"], r["time_s"] * 1e3) for r in rows if analysis.dataflow(r) == name
            )
            if points:
                axes.plot(*zip(*points, strict=True), "o-", color=colour, label=name, markersize=4)
        mark_published(axes, [analysis.WHOLE] * 2, list(PUBLISHED_MS.values()), "paper, GH200")
        axes.set(xlabel="SMs", ylabel="latency (ms)", yscale="log")
        axes.legend(fontsize=7.5)

    return "Pure dataflows", draw


def _alpha(grid: Iterable[Row]) -> Panel | None:
    rows = [r for r in _fig4(grid) if r["what"] == "hybrid" and r["sm_limit"] == analysis.WHOLE]
    if not rows:
        return None

    def draw(axes: Axes) -> None:
        for colour, cluster in zip(COLOURS, (1, 2, 4, 8), strict=False):
            points = sorted(
                (r["alpha"], r["time_s"] * 1e3)
                for r in rows
                if r["cluster"] == cluster or (r["alpha"] == 0 and cluster > 1)
            )
            if points:
                axes.plot(
                    *zip(*points, strict=True),
                    "o-",
                    color=colour,
                    label=f"cluster {cluster}",
                    markersize=4,
                )
        axes.set(xlabel="alpha (1 = all SymGEMM)", ylabel="latency (ms)", yscale="log")
        axes.legend(fontsize=7.5)

    return f"{analysis.WHOLE} SMs", draw


def _rivals(grid: Iterable[Row]) -> Panel | None:
    rows = [r for r in _fig4(grid) if r.get("sm_limit", analysis.WHOLE) == analysis.WHOLE]
    ours = analysis.best(rows, what="hybrid")
    rivals = {r["what"]: r for r in rows if r["what"] in RIVALS}
    if ours is None or not rivals:
        return None

    def draw(axes: Axes) -> None:
        names = ["hybrid, best", *rivals]
        values = [ours["time_s"] * 1e3, *(r["time_s"] * 1e3 for r in rivals.values())]
        bars = axes.bar(range(len(names)), values, color=[GREEN, *[GREY] * len(rivals)])
        axes.bar_label(bars, fmt="%.2f", fontsize=7.5)
        if "limit_s" in ours:
            axes.axhline(ours["limit_s"] * 1e3, color=VERMILION, linestyle=":", label="limit")
            axes.legend(fontsize=7.5)
        axes.set_xticks(range(len(names)), [n.replace("_", "\n") for n in names], fontsize=7.5)
        axes.set(ylabel="latency (ms)")

    return "Against copies", draw


def _shape(grid: Iterable[Row], over: str, **where: int) -> Panel | None:
    rows = _at(grid, what="hybrid", alpha=0.0, sm_limit=analysis.WHOLE, **where)
    points = sorted((r[over], r["flops"] / r["time_s"] / 1e12) for r in rows)
    if len(points) < 2:
        return None

    def draw(axes: Axes) -> None:
        axes.plot(*zip(*points, strict=True), "o-", color=BLUE, markersize=4)
        axes.set_xscale("log", base=2)
        axes.set(xlabel=over.upper(), ylabel="TFLOP/s")

    fixed = ", ".join(f"{name.upper()}={value}" for name, value in where.items())
    return f"Over {over.upper()} ({fixed})", draw


def _m_tile(grid: Iterable[Row]) -> Panel | None:
    points = sorted((r["tm"], r["time_s"] * 1e3) for r in _at(grid, what="m_tile"))
    if not points:
        return None

    def draw(axes: Axes) -> None:
        bars = axes.bar(range(len(points)), [time for _, time in points], color=BLUE)
        axes.bar_label(bars, fmt="%.2f", fontsize=7.5)
        axes.set_xticks(range(len(points)), [str(tm) for tm, _ in points])
        axes.set(xlabel="M tile (rows)", ylabel="latency (ms)")

    return "Latency", draw


def _groups(rows: Sequence[Row]) -> Panel | None:
    found = [r for r in rows if r["status"] == "ok" and r.get("what") == "groups"]
    if not found:
        return None

    def draw(axes: Axes) -> None:
        for colour, sms in zip(COLOURS, sorted({r["sms_each"] for r in found}), strict=False):
            total = sorted({(r["groups"], r["total_gbps"]) for r in found if r["sms_each"] == sms})
            axes.plot(*zip(*total, strict=True), "o-", color=colour, label=f"all, {sms} SMs each")
            each = [(r["groups"], r["gbps"]) for r in found if r["sms_each"] == sms and "gbps" in r]
            if each:
                axes.plot(*zip(*each, strict=True), ".", color=colour, markersize=4)
        axes.set(xlabel="groups of SMs", ylabel="GB/s from host memory")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.legend(fontsize=7.5)

    return "One launch", draw


def _processes(rows: Sequence[Row]) -> Panel | None:
    found = [r for r in rows if r["status"] == "ok" and r.get("what") == "processes"]
    if not found:
        return None

    def draw(axes: Axes) -> None:
        labels = sorted({(r["sms"], r["count"]) for r in found})
        for at, (sms, count) in enumerate(labels):
            below = 0.0
            for i, r in enumerate(r for r in found if (r["sms"], r["count"]) == (sms, count)):
                axes.bar(at, r["gbps"], bottom=below, color=COLOURS[i % len(COLOURS)])
                below += r["gbps"]
        axes.set_xticks(range(len(labels)), [f"{c} x {s} SMs" for s, c in labels], fontsize=7.5)
        axes.set(ylabel="GB/s from host memory")

    return "Processes, time-sliced", draw


def _boxes(rows: Sequence[Row]) -> Panel | None:
    found = [
        r for r in rows if r["status"] == "ok" and r.get("fact") == "tma" and r["place"] == "host"
    ]
    if not found:
        return None

    def draw(axes: Axes) -> None:
        labels = [f"{r['rows']}x{r['columns']}\ncluster {r['cluster']}" for r in found]
        axes.bar(range(len(found)), [r["gbps"] for r in found], color=ORANGE)
        axes.set_xticks(range(len(found)), labels, fontsize=6.5, rotation=60)
        axes.set(ylabel="GB/s from host memory")

    return "Box and multicast", draw


def _by_sms(rows: Sequence[Row]) -> Panel | None:
    found = [(r["sms"], r["gbps"]) for r in rows if r["status"] == "ok" and r.get("fact") == "sms"]
    if not found:
        return None

    def draw(axes: Axes) -> None:
        axes.plot(*zip(*sorted(found), strict=True), "o-", color=PURPLE, markersize=4)
        axes.set(xlabel="SMs that load", ylabel="GB/s from host memory")

    return "Loading SMs", draw


def _fractions(grid: Sequence[Row]) -> Panel | None:
    found = []
    for cell, rows in analysis.cells(grid).items():
        ours = analysis.best(rows, what="hybrid")
        if cell[3] == analysis.WHOLE and ours is not None and "fraction" in ours:
            found.append((cell[2], ours["fraction"], ours["binds"]))
    if not found:
        return None

    def draw(axes: Axes) -> None:
        for colour, binds in zip((BLUE, GREEN, ORANGE), ("link", "hbm", "flops"), strict=True):
            points = [(m, f) for m, f, b in found if b == binds]
            if points:
                axes.plot(*zip(*points, strict=True), "o", color=colour, label=binds, markersize=4)
        axes.set_xscale("log", base=2)
        axes.axhline(0.8, color=GREY, linestyle=":")
        axes.set(xlabel="rows M", ylabel="limit / time", ylim=(0, 1.1))
        axes.legend(title="limit", fontsize=7.5)

    return "All GEMMs", draw
