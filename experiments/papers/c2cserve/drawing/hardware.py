"""C2CServe's Tables 1 and 2, and the projection of section 9.5."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.figure import Figure

from experiments.figures.style import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    VERMILION,
    Tables,
    canvas,
    draw_table,
    finish,
    mark_published,
    rows_of,
)

__all__ = ["draw_projection", "draw_table1", "draw_table2"]

NAMES = {"gh200": "GH200", "gb200": "GB200", "rubin": "Rubin"}


def draw_table1(tables: Tables, caption: str) -> Figure:
    """Draw the table of MIG layouts, with printed values under ours."""
    columns = (
        ("instances", "instances", "{:g}"),
        ("hbm_gb_per_instance", "HBM each (GB)", "{:g}"),
        ("sms_per_instance", "SMs each", "{:g}"),
        ("hbm_tb_per_s_per_instance", "HBM each (TB/s)", "{:.1f}"),
    )
    rows = rows_of(tables["layouts"])
    figure, (axes,) = canvas(8.2, 3.9)
    cells, below = _cells(rows, "layout", columns)
    for row, first, second in zip(rows, cells, below, strict=True):
        first += [f"{row['link_cap_gbps']:.0f}", f"{row['hbm_over_link']:.1f}"]
        second += ["", ""]
    header = ["layout", *(c[1] for c in columns), "link cap (GB/s)", "HBM / link"]
    draw_table(axes, header, cells, below, [1.1, 1, 1.3, 1, 1.4, 1.4, 1])
    return finish(figure, "C2CServe, Table 1: MIG layouts of GH200", caption)


def draw_table2(tables: Tables, caption: str) -> Figure:
    """Draw the table of Superchips, with printed values under ours."""
    columns = (
        ("cpu_mem_gb", "CPU memory (GB)", "{:g}"),
        ("hbm_gb", "HBM (GB)", "{:g}"),
        ("hbm_tb_per_s", "HBM (TB/s)", "{:.1f}"),
        ("c2c_gb_per_s", "C2C, both (GB/s)", "{:g}"),
    )
    rows = rows_of(tables["superchips"])
    figure, (axes,) = canvas(8.8, 3.0)
    cells, below = _cells(rows, "platform", columns)
    for row, first, second in zip(rows, cells, below, strict=True):
        first[0] = NAMES[first[0]]
        first += [f"{row['link_datasheet_gbps']:.0f}", f"{row['link_measured_gbps']:.0f}"]
        second += ["datasheet", "derived" if row["measured_is_derived"] else "measured"]
    header = ["platform", *(c[1] for c in columns), "one way (GB/s)", "usable (GB/s)"]
    draw_table(axes, header, cells, below, [0.9, 1.4, 1, 1.1, 1.5, 1.3, 1.2])
    return finish(figure, "C2CServe, Table 2: Superchips", caption)


def _cells(
    rows: list[dict[str, Any]], name: str, columns: tuple[tuple[str, str, str], ...]
) -> tuple[list[list[str]], list[list[str]]]:
    cells = [[r[name], *(form.format(r[key]) for key, _, form in columns)] for r in rows]
    below = [
        ["", *(f"paper {form.format(r[f'published_{key}'])}" for key, _, form in columns)]
        for r in rows
    ]
    return cells, below


def draw_projection(tables: Tables, caption: str) -> Figure:
    """Draw GEMM rates over M, and speed-ups beside ratios of bandwidths."""
    figure, (left, right) = canvas(9.6, 4.3, columns=2, width_ratios=[1.25, 1])
    shades = {"gh200": (0.45, "-"), "gb200": (0.75, "--"), "rubin": (1.0, ":")}
    for kernel, colour, text in (("hbm", GREY, "weights in HBM"), ("hybrid", BLUE, "HybridGEMM")):
        for name, (shade, line) in shades.items():
            rows = rows_of(tables["rates"], platform=name, kernel=kernel, is_drawn=True)
            left.plot(
                [r["m"] for r in rows],
                [r["tflops"] for r in rows],
                line,
                color=colour,
                alpha=shade,
                label=f"{NAMES[name]}, {text}",
            )
    left.set(xscale="log", yscale="log", xlabel="rows M (tokens)", ylabel="TFLOP/s")
    left.set_xscale("log", base=2)
    left.set_title("Rate over M")
    left.legend(fontsize=7.5, loc="lower right")

    rows = rows_of(tables["scaling"], is_drawn=True)
    x = np.arange(len(rows))
    for offset, key, colour, label in (
        (-0.27, "hbm_gemm", GREY, "weights in HBM"),
        (0.0, "hbm_gemm_one_tile", GREEN, "the same, one tile"),
        (0.27, "hybrid_gemm", BLUE, "HybridGEMM"),
    ):
        bars = right.bar(x + offset, [r[key] for r in rows], 0.25, color=colour, label=label)
        right.bar_label(bars, fmt="%.1f×", padding=-14, fontsize=8, color="white")
    right.hlines([r["host_memory"] for r in rows], x - 0.4, x + 0.4, color=ORANGE, linewidth=2.5,
                 label="host memory")  # fmt: skip
    # printed in section 9.5: GB200 HBM 2x, Rubin HBM 5.5x and C2C 2x
    mark_published(right, [0.73, 1.73, 2.27], [2.0, 5.5, 2.0], "paper's bandwidth ratio")
    right.set_xticks(x, [NAMES[r["platform"]] for r in rows])
    right.set(ylabel="relative to GH200", ylim=(0, 7.4))
    right.set_title("Speed-up over GH200 (M=16)")
    right.legend(loc="upper left", fontsize=8)
    right.axhline(1, color=VERMILION, linewidth=0.8, linestyle=":")
    return finish(figure, "C2CServe, Section 9.5: projection to later Superchips", caption)
