"""AsymGEMM's M tile: partial sums in HBM against on-chip bytes (C2CServe, Fig. 8)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from c2c.cost import (
    KernelTiles,
    asym_accumulation_steps,
    gemm_time,
    load_constants,
    onchip_bytes,
)
from c2c.hardware import link_gbps, slices
from c2c.ranges import Count
from experiments.claims import answer
from experiments.figure import Computed, Context, figure
from experiments.papers.c2cserve.settings import Chip, Gemm

__all__ = ["compute"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tiles:
    """Experiment: rows of AsymGEMM's M tile, on a layout's first slice."""

    chip: Chip
    layout: str
    gemm: Gemm
    m_tiles: tuple[Count, ...]


@figure(
    "fig8", title="Fig. 8: M tile of AsymGEMM", experiment=Tiles, draw=".drawing.gemm.draw_fig8"
)
def compute(context: Context, experiment: Tiles) -> Computed:
    """Return a row a M tile, for Fig. 4's GEMM."""
    chip, constants = experiment.chip.platform, load_constants()
    shared = link_gbps(chip.link, context.link_variant)
    full_gpu = slices(chip, experiment.layout)[0]
    gemm = experiment.gemm
    default = KernelTiles()
    rows: list[dict[str, Any]] = []
    for tm in experiment.m_tiles:
        tiles = replace(default, asym=replace(default.asym, tm=tm))
        time = gemm_time(
            *gemm.mnk, 0.0, slice_=full_gpu, constants=constants, link_gbps=shared, tiles=tiles
        )
        smem, accumulators = onchip_bytes(tiles.asym, weight_stationary=True)
        rows.append(
            {
                "m_tile": tm,
                "accumulation_steps": float(asym_accumulation_steps(*gemm.mnk, tiles.asym)),
                "hbm_gb": float(time.traffic.hbm_bytes) / 1e9,
                "smem_kib": smem / 1024,
                "accumulator_kib": accumulators / 1024,
                "latency_ms": float(time.time_s) * 1e3,
            }
        )
    counts = " to ".join(f"{rows[i]['accumulation_steps']:,.0f}" for i in (0, -1))
    note = (
        f"Accumulation steps, from {counts}, as the text of section 5.2.3 counts (read so on "
        "2026-11-29; before as bytes, which stay, as each element of O is updated once a K slice)."
    )
    result = answer(
        "c2cserve.fig8.m_tile",
        {
            "hbm_traffic": [r["accumulation_steps"] for r in rows],
            "onchip_use": [r["smem_kib"] + r["accumulator_kib"] for r in rows],
        },
        note,
        link_variant=context.link_variant,
    )
    caption = (
        "AsymGEMM by rows of its M tile: reductions into the output O, HBM bytes and on-chip "
        f"bytes of one GEMM on a full GH200, {context.link_text(shared)}."
    )
    assumptions = (
        f"The GEMM has M={gemm.m}, K={gemm.k}, N={gemm.n}; a K slice of {default.asym.kc} is "
        "pinned.",
        "HBM bytes do not change, as each element of O is updated once a K slice.",
        "Shared memory holds the pinned weights, the pipeline of X and the output staging.",
    )
    return Computed(
        tables={"tiles": pa.Table.from_pylist(rows)},
        results=(result,),
        caption=caption,
        finding=f"From {rows[0]['m_tile']} to {rows[-1]['m_tile']} rows a tile, reductions fall "
        "from "
        f"{counts}, HBM bytes stay at {rows[-1]['hbm_gb']:.2f} GB, and latency falls from "
        f"{rows[0]['latency_ms']:.1f} to {rows[-1]['latency_ms']:.1f} ms",
        assumptions=assumptions,
    )
