"""GEMM figures: Figs. 4, 5 and 8, and the best alpha's map."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from experiments.figures.style import (
    BLUE,
    GREEN,
    GREY,
    INK,
    ORANGE,
    VERMILION,
    Tables,
    canvas,
    finish,
    mark_published,
    rows_of,
)

__all__ = ["draw_fig4", "draw_fig5", "draw_fig8"]


def draw_fig4(tables: Tables, caption: str) -> Figure:
    """Draw latency over MIG layouts, and bytes of the pure dataflows."""
    figure, (left, right) = canvas(10.2, 4.5, columns=2, width_ratios=[1.7, 1])
    rows = rows_of(tables["latency"])
    layouts = list(dict.fromkeys(r["layout"] for r in rows))
    x = np.arange(len(layouts))
    for offset, label, colour in ((-0.27, "SymGEMM", BLUE), (0.0, "AsymGEMM", ORANGE)):
        alpha = 1.0 if label == "SymGEMM" else 0.0
        chosen = [r for r in rows if r["alpha"] == alpha]
        bars = left.bar(x + offset, [r["latency_ms"] for r in chosen], 0.25, color=colour,
                        label=label)  # fmt: skip
        left.bar_label(bars, fmt="%.1f", padding=5, fontsize=7.5)
        for place, r in zip(x + offset, chosen, strict=True):
            if r["published_ms"] is not None:
                label_once = "paper (fitted to)" if label == "SymGEMM" else "_paper"
                mark_published(left, [place], [r["published_ms"]], label_once)
    best = [
        min((r for r in rows if r["layout"] == n), key=lambda r: r["latency_ms"]) for n in layouts
    ]
    bars = left.bar(x + 0.27, [r["latency_ms"] for r in best], 0.25, color=GREEN,
                    label="HybridGEMM, best α")  # fmt: skip
    left.bar_label(bars, fmt="%.1f", padding=5, fontsize=7.5)
    names = [f"{r['layout']}\nα={r['alpha']:.2f}" for r in best]
    left.set_xticks(x, [names[0] + "\n(full GPU)", *names[1:]])
    left.set(ylabel="latency (ms)", xlabel="MIG layout (one slice of it) and best α")
    left.margins(y=0.27)
    left.set_title("(a) Latency of one GEMM", fontsize=9.5)
    left.legend(loc="upper left")

    pairs = [("sym", "c2c"), ("asym", "c2c"), ("sym", "hbm"), ("asym", "hbm")]
    row_of = {(r["path"], r["link"]): r for r in rows_of(tables["bytes"])}
    place = np.array([0, 1, 2.5, 3.5])
    bars = right.bar(
        place, [row_of[p]["gb"] for p in pairs], 0.8, color=[BLUE, ORANGE, BLUE, ORANGE]
    )
    right.bar_label(bars, [f"{row_of[p]['gb']:.2f}" for p in pairs], padding=6, fontsize=8)
    mark_published(right, place.tolist(), [row_of[p]["published_gb"] for p in pairs])
    right.set_xticks(place, ["Sym", "Asym", "Sym", "Asym"])
    for middle, text in ((0.5, "host link"), (3.0, "HBM")):
        right.text(middle, 6.25, text, ha="center", fontweight="bold", color=INK)
    right.set(ylabel="bytes moved (GB)", ylim=(0, 6.7))
    right.set_title("(b) Bytes, full GPU", fontsize=9.5)
    right.legend(loc="center", bbox_to_anchor=(0.42, 0.78))
    return finish(figure, "C2CServe, Fig. 4: SymGEMM, AsymGEMM and HybridGEMM", caption)


def draw_fig5(tables: Tables, caption: str) -> Figure:
    """Draw TFLOP/s and link utilisation over N and over M."""
    figure, panels = canvas(9.4, 4.0, columns=2)
    for axes, sweep, text in zip(panels, ("n", "m"), ("N", "M"), strict=True):
        rows = rows_of(tables["shapes"], sweep=sweep)
        points = [r[sweep] for r in rows]
        axes.plot(points, [r["tflops"] for r in rows], "o-", color=BLUE, markersize=4)
        axes.set_xscale("log", base=2)
        axes.set(xlabel=text, ylim=(0, 380))
        axes.set_ylabel("TFLOP/s", color=BLUE)
        axes.set_title(f"({'a' if sweep == 'n' else 'b'}) Over {text}")
        other = axes.twinx()
        other.plot(points, [100 * r["link_utilisation"] for r in rows], "s--", color=VERMILION,
                   markersize=4)  # fmt: skip
        other.set(ylim=(0, 100))
        other.set_ylabel("link utilisation (%)", color=VERMILION)
        other.grid(visible=False)
    return finish(figure, "C2CServe, Fig. 5: AsymGEMM's shape effects", caption)


def draw_fig8(tables: Tables, caption: str) -> Figure:
    """Draw reductions, HBM bytes and on-chip bytes over the M tile."""
    rows = rows_of(tables["tiles"])
    figure, (first, second, third) = canvas(10.0, 3.9, columns=3)
    x = np.arange(len(rows))
    names = [str(r["m_tile"]) for r in rows]
    bars = first.bar(x, [r["accumulation_steps"] / 1e3 for r in rows], 0.6, color=BLUE)
    first.bar_label(bars, fmt="%.0f", padding=2, fontsize=8)
    first.set(ylabel="reductions into O (thousands)")
    first.margins(y=0.1)
    first.set_title("Partial tiles pushed")
    bars = second.bar(x, [r["hbm_gb"] for r in rows], 0.6, color=GREEN)
    second.bar_label(bars, fmt="%.2f", padding=2, fontsize=8)
    second.set(ylabel="HBM traffic (GB)", ylim=(0, 1.15 * max(r["hbm_gb"] for r in rows)))
    second.set_title("HBM bytes, and latency")
    smem, accumulators = (np.array([r[k] for r in rows]) for k in ("smem_kib", "accumulator_kib"))
    third.bar(x, smem, 0.6, color=ORANGE, label="shared memory")
    bars = third.bar(x, accumulators, 0.6, bottom=smem, color=GREY, label="accumulators")
    third.bar_label(
        bars, [f"{v:.0f}" for v in smem + accumulators], padding=3, fontsize=8,
        bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.8},
    )  # fmt: skip
    third.axhline(227, color=VERMILION, linestyle=":", linewidth=1.2, label="shared memory limit")
    third.set(
        ylabel="on-chip bytes of a CTA (KiB)", ylim=(0, 1.5 * max([227.0, *(smem + accumulators)]))
    )
    third.set_title("On-chip use")
    third.legend(loc="upper left")
    for axes in (first, second, third):
        axes.set_xticks(x, names)
        axes.set_xlabel("M tile (rows)")
    second.set_xticks(
        x, [f"{n}\n{r['latency_ms']:.2f} ms" for n, r in zip(names, rows, strict=True)]
    )
    return finish(figure, "C2CServe, Fig. 8: M tile of AsymGEMM", caption)
