"""WEAVER's figures: TPOT and largest rates, sensitivity, ablation, Table 1, stalls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.claims import claim
from experiments.figures.style import (
    BLUE,
    GREEN,
    GREY,
    INK,
    ORANGE,
    PUBLISHED,
    VERMILION,
    Tables,
    canvas,
    finish,
    rows_of,
)

__all__ = [
    "draw_ablation",
    "draw_cold_slices",
    "draw_long",
    "draw_rates",
    "draw_shares",
    "draw_stalls",
    "draw_table1",
]

_COLOURS: Final = {"woven": BLUE, "dedicated": INK, "temporal": ORANGE, "spatial": VERMILION}
_LABELS: Final = {
    "woven": "WEAVER (woven)", "dedicated": "dedicated GPUs", "temporal": "MuxServe, temporal",
    "spatial": "MuxServe, spatial",
}  # fmt: skip
_NODES: Final = {"a100_40_nvlink": "A100", "l40s_pcie": "L40S"}
_LENGTHS: Final = {"azure": "Azure", "burstgpt": "BurstGPT"}

_VARIANTS: Final = {
    "apart": "own GPU\neach", "cpu": "CPU\ncontrols", "gpu": "GPU\ncontrols",
    "splitting": "+ cuts by\nAlgorithm 1", "ours": "+ our\ncuts",
}  # fmt: skip

Rows = Sequence[dict[str, Any]]


def draw_rates(tables: Tables, caption: str) -> Figure:
    """Draw TPOT of both models over the hot rate."""
    rows = rows_of(tables["curves"])
    panels = list(dict.fromkeys((r["node"], r["lengths"]) for r in rows))
    figure, axes = canvas(13.0, 6.0, columns=len(panels), rows=2, sharex="col")
    largest = {(r["node"], r["lengths"], r["way"]): r["largest_rps"]
               for r in rows_of(tables["largest"])}  # fmt: skip
    for column, (node, lengths) in enumerate(panels):
        here = [r for r in rows if (r["node"], r["lengths"]) == (node, lengths)]
        for row, name in enumerate(("hot_s", "cold_s")):
            _by_rate(axes[row * len(panels) + column], here, name)
        for way, colour in _COLOURS.items():
            if (node, lengths, way) in largest:
                axes[column].axvline(
                    largest[node, lengths, way], color=colour, linestyle=":", linewidth=1.0
                )
        axes[column].set_title(f"{_NODES[node]}, {_LENGTHS[lengths]}", fontsize=9.5)
        axes[len(panels) + column].set_xlabel("hot requests/s")
    axes[0].set_ylabel("hot TPOT (ms)")
    axes[len(panels)].set_ylabel("cold TPOT (ms)")
    title = "WEAVER: TPOT by the hot rate; dotted: largest rates"
    return finish(figure, title, caption, legend=axes[0])


def _by_rate(axes: Axes, rows: Rows, column: str) -> None:
    for way, colour in _COLOURS.items():
        mine = sorted((r["hot_rps"], 1e3 * r[column]) for r in rows if r["way"] == way)
        if mine:
            axes.plot(*zip(*mine, strict=True), marker="o", markersize=3, color=colour,
                      label=_LABELS[way])  # fmt: skip
    axes.set_ylim(bottom=0)


def draw_shares(tables: Tables, caption: str) -> Figure:
    """Draw TPOT by the cold rate and by the share of sequences that are away."""
    figure, (left, right) = canvas(10.0, 3.8, 2)
    rows = rows_of(tables["rates"])
    for way, colour in _COLOURS.items():
        mine = [r for r in rows if r["way"] == way]
        for column, line in (("hot_s", "-"), ("cold_s", "--")):
            left.plot(
                [r["cold_rps"] for r in mine], [1e3 * r[column] for r in mine], line, marker="o",
                markersize=3, color=colour, label=f"{_LABELS[way]}, {column.removesuffix('_s')}",
            )  # fmt: skip
    left.set(
        xlabel=f"cold requests/s beside {rows[0]['hot_rps']:g} hot ones",
        ylabel="TPOT (ms)",
        ylim=(0, None),
    )
    left.set_xticks(sorted({r["cold_rps"] for r in rows}))
    left.legend(fontsize=7, ncols=2)
    shares = rows_of(tables["shares"])
    for column, colour in (("hot_s", BLUE), ("cold_s", GREEN)):
        right.plot(
            [100 * r["share"] for r in shares], [1e3 * r[column] for r in shares], marker="o",
            color=colour, label=column.removesuffix("_s"),
        )  # fmt: skip
    none = min(shares, key=lambda r: r["share"])
    printed = {
        "hot": 1e3 * none["hot_s"] * (1 - claim("weaver.fig5b.at_50.hot").value / 100),
        "cold": 1e3 * none["cold_s"] + claim("weaver.fig5b.at_50.cold").value,
    }
    right.plot([50, 50], [*printed.values()], **PUBLISHED, label="paper's change, on ours at 0")
    right.set(xlabel="hot sequences away (%)", ylabel="TPOT (ms)", ylim=(0, None))
    right.legend(fontsize=8)
    return finish(
        figure, "WEAVER: TPOT by the cold rate and by the share of sequences away", caption
    )


def draw_long(tables: Tables, caption: str) -> Figure:
    """Draw both models' TPOT by hot rate, with long outputs."""
    figure, (left, right) = canvas(9.0, 3.6, 2)
    rows = rows_of(tables["curves"])
    for axes, name in ((left, "hot_s"), (right, "cold_s")):
        _by_rate(axes, rows, name)
        axes.set(xlabel="hot requests/s", ylabel=f"{name.removesuffix('_s')} TPOT (ms)")
    left.legend(fontsize=8)
    return finish(figure, "WEAVER: TPOT with long outputs", caption)


def draw_ablation(tables: Tables, caption: str) -> Figure:
    """Draw both models' TPOT by control and cut, beside printed values."""
    figure, (left, right) = canvas(9.0, 3.6, 2)
    rows = {r["variant"]: r for r in rows_of(tables["variants"])}
    names = [*rows]
    labels = [_VARIANTS[name] for name in names]
    cpu = claim("weaver.fig7a.cpu_control").value
    gpu = cpu / claim("weaver.fig7a.gpu_control").value
    cut = gpu * (1 - claim("weaver.fig7a.op_splitting").value / 100)
    bars = left.bar(labels, [1e3 * rows[n]["hot_s"] for n in names], color=BLUE, label="ours")
    left.bar_label(bars, fmt="%.0f", label_type="center", color="white")
    left.plot(
        [_VARIANTS[n] for n in ("cpu", "gpu", "splitting")],
        [cpu, gpu, cut],
        **PUBLISHED,
        label="paper",
    )
    left.set_ylabel("hot TPOT (ms)")
    bars = right.bar(labels, [1e3 * rows[n]["cold_s"] for n in names], color=GREEN)
    right.bar_label(bars, fmt="%.0f", label_type="center", color="white")
    right.set_ylabel("cold TPOT (ms)")
    left.legend()
    return finish(figure, "WEAVER: TPOT by control and by cut of operators", caption)


def draw_table1(tables: Tables, caption: str) -> Figure:
    """Draw tokens a second by batch, beside the printed values."""
    figure, (axes,) = canvas(6.0, 3.6, 1)
    rows = rows_of(tables["throughput"])
    labels = {"separate": "two instances", "tp2": "tensor parallel"}
    for name, colour in (("separate", GREY), ("tp2", ORANGE)):
        batches = [r["batch"] for r in rows]
        axes.plot(batches, [r[f"{name}_tok_s"] for r in rows], marker="o", color=colour,
                  label=labels[name])  # fmt: skip
        axes.plot(
            batches, [r[f"printed_{name}_tok_s"] for r in rows],
            **{**PUBLISHED, "markeredgecolor": colour}, label=f"{labels[name]}, paper",
        )  # fmt: skip
    axes.set(xlabel="sequences", ylabel="tokens/s")
    axes.set_xscale("log", base=2)  # ticks are powers of two alone
    axes.set_yscale("log", base=2)
    axes.set_xticks(batches, [str(b) for b in batches])
    ticks = [1000, 2000, 4000, 8000]
    axes.set_yticks(ticks, [f"{t:,}" for t in ticks])
    axes.legend()
    return finish(figure, "Two instances, and tensor parallelism on two GPUs", caption)


def draw_stalls(tables: Tables, caption: str) -> Figure:
    """Draw three estimates of stalls by slack, and sampled waits."""
    figure, (axes,) = canvas(6.0, 3.6, 1)
    rows = rows_of(tables["stalls"])
    slack = [r["slack"] for r in rows]
    for name, colour in (("printed", ORANGE), ("expected", BLUE), ("stated", VERMILION)):
        axes.plot(slack, [r[name] for r in rows], color=colour, label=name)
    for name, colour in (("drawn", BLUE), ("drawn_stated", VERMILION)):
        axes.plot(slack, [r[name] for r in rows], "o", markersize=4, color=colour,
                  label="drawn waits" if name == "drawn" else None)  # fmt: skip
    axes.set(xlabel="slack K - N (s)", ylabel="stall (s)")
    axes.legend()
    return finish(figure, "WEAVER: estimates of a layer's stall", caption)


def draw_cold_slices(tables: Tables, caption: str) -> Figure:
    """Draw hot tokens a second by the share away."""
    rows = rows_of(tables["ratios"])
    panels = list(dict.fromkeys((r["mig"], r["receivers"]) for r in rows))
    figure, axes = canvas(3.0 * len(panels), 3.6, len(panels), sharey=True)
    for panel, (mig, receivers) in zip(axes, panels, strict=True):
        loads = dict.fromkeys(r["load"] for r in rows)
        for load, colour in zip(loads, (GREEN, BLUE, ORANGE), strict=True):
            for cut, style in (("none", ":"), ("best", "-")):
                mine = rows_of(tables["ratios"], mig=mig, receivers=receivers, load=load, cut=cut)
                panel.plot(
                    [r["ratio"] for r in mine], [r["tokens_per_s"] for r in mine], style,
                    color=colour, label=f"load {load:g}" if cut == "best" else None,
                )  # fmt: skip
        plural = "" if receivers == 1 else "s"
        panel.set_title(f"{mig}, {receivers} receiver{plural}", fontsize=9.5)
        panel.set_xlabel("share of hot sequences away")
        panel.set_ylim(0, 1.1 * max(r["tokens_per_s"] for r in rows))
    axes[0].set_ylabel("hot tokens/s")
    axes[0].legend(fontsize=8, loc="upper left")
    return finish(
        figure, "WEAVER: a hot model over cold slices; dotted: operators not cut", caption
    )
