"""AsymGEMM's TFLOP/s and link utilisation over M and N (C2CServe, Fig. 5)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from c2c.cost import gemm_time, load_constants
from c2c.hardware import link_gbps, slices
from c2c.ranges import Count
from experiments.claims import Result, answer
from experiments.figure import Computed, Context, figure
from experiments.papers.c2cserve.settings import Chip

__all__ = ["compute"]


@dataclass(frozen=True, slots=True, kw_only=True)
class OverN:
    """Numbers of columns at one number of rows."""

    m: Count
    n: tuple[Count, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OverM:
    """Numbers of rows at one number of columns."""

    n: Count
    m: tuple[Count, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shapes:
    """Experiment: GEMMs of AsymGEMM on a layout's first slice."""

    chip: Chip
    layout: str
    k: Count
    over_n: OverN
    over_m: OverM


@figure("fig5", title="Fig. 5: GEMM shapes", experiment=Shapes, draw=".drawing.gemm.draw_fig5")
def compute(context: Context, experiment: Shapes) -> Computed:
    """Return both sweeps on the full GPU."""
    chip, constants = experiment.chip.platform, load_constants()
    shared = link_gbps(chip.link, context.link_variant)
    full_gpu = slices(chip, experiment.layout)[0]
    k, fixed_m, fixed_n = experiment.k, experiment.over_n.m, experiment.over_m.n
    sizes_n, sizes_m = np.array(experiment.over_n.n), np.array(experiment.over_m.m)

    def sweep(name: str, m: Any, n: Any) -> list[dict[str, Any]]:
        m, n = np.broadcast_arrays(m, n)
        time = gemm_time(m, n, k, 0.0, slice_=full_gpu, constants=constants, link_gbps=shared)
        tflops = time.traffic.flops / time.time_s / 1e12
        used = time.traffic.link_bytes / time.time_s / (shared * 1e9)
        return [
            {"sweep": name, "m": a, "n": b, "tflops": t, "link_utilisation": u}
            for a, b, t, u in zip(*(v.tolist() for v in (m, n, tflops, used)), strict=True)
        ]  # fmt: skip

    over_n = sweep("n", fixed_m, sizes_n)
    over_m = sweep("m", sizes_m, fixed_n)
    peak = full_gpu.bf16_tflops * constants.mma_efficiency
    smallest = sweep("corner", sizes_m[0], sizes_n[:1])[0]
    caption = (
        f"AsymGEMM's rate and share of the link used on the full GPU: (a) over N at M={fixed_m}, "
        f"(b) over M at N={fixed_n}; {context.link_text(shared)}."
    )
    assumptions = (
        f"The GEMM has K={k}.",
        "The paper's text gives directions only, no values.",
    )

    def result(claim_id: str, ours: Any, note: str = "") -> Result:
        return answer(f"c2cserve.fig5.{claim_id}", ours, note, link_variant=context.link_variant)

    return Computed(
        tables={"shapes": pa.Table.from_pylist(over_n + over_m)},
        results=(
            result("n_effect", _series(over_n)),
            result("m_effect", _series(over_m)),
            result(
                "small_shapes",
                {"tflops": smallest["tflops"] < 0.1 * peak},
                f"Low: under a tenth of the attainable peak; M={sizes_m[0]}, N={sizes_n[0]}.",
            ),
        ),
        caption=caption,
        finding="AsymGEMM uses "
        f"{100 * over_m[0]['link_utilisation']:.0f}% of the link at M={sizes_m[0]} and "
        f"{100 * over_m[-1]['link_utilisation']:.0f}% at M={sizes_m[-1]}, where compute limits it",
        assumptions=assumptions,
    )


def _series(rows: list[dict[str, Any]]) -> dict[str, list[float]]:
    return {
        "tflops": [r["tflops"] for r in rows],
        "c2c_utilization": [r["link_utilisation"] for r in rows],
    }
