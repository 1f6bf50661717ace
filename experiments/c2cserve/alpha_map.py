"""Best alpha over rows and SMs, and the gain of multicast (beyond the paper)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from c2c.cost import gemm_time, kernel_names, load_constants, load_kernel
from c2c.hardware import link_gbps, slices
from experiments.c2cserve.settings import gh200_of_the_paper
from experiments.figure import Computed, Context, figure

__all__ = ["compute"]

N, K = 16384, 4096
ALPHAS = np.linspace(0.0, 1.0, 65)
M_GRID = tuple(round(float(v)) for v in np.geomspace(16, 16384, 41))


@figure("alpha_map", title="Best alpha (beyond the paper)", draw="gemm.draw_alpha_map")
def compute(context: Context) -> Computed:
    """Return the best alpha, and its latency against the pure paths, by (layout, kernel, M)."""
    gh200, constants = gh200_of_the_paper(), load_constants()
    shared = link_gbps(gh200.link, context.link_variant)
    m = np.array(M_GRID)[:, None]
    rows: list[dict[str, Any]] = []
    for layout in gh200.mig:
        slice_ = slices(gh200, layout)[0]
        for kernel in kernel_names():
            seconds = gemm_time(
                m, N, K, ALPHAS, slice_=slice_, constants=constants,
                link_gbps=shared, tiles=load_kernel(kernel),
            ).time_s  # fmt: skip
            best = seconds.argmin(axis=1)
            rows += [
                {
                    "layout": layout,
                    "sms": slice_.sm_count,
                    "kernel": kernel,
                    "m": int(a),
                    "best_alpha": float(ALPHAS[b]),
                    "best_ms": float(row[b]) * 1e3,
                    "sym_ms": float(row[-1]) * 1e3,
                    "asym_ms": float(row[0]) * 1e3,
                }
                for a, b, row in zip(M_GRID, best, seconds, strict=True)
            ]
    caption = (
        "Best alpha (share of columns for SymGEMM) by rows M and slice, and the gains by mixing "
        "both dataflows and by multicast, as the cost model predicts; "
        f"{context.link_text(shared)}."
    )
    assumptions = (
        f"The GEMM has N={N}, K={K} and the link for itself.",
        "The smaller alpha is shown where two have the same latency.",
        "Multicast: thread blocks along M share each weight tile.",
        "No kernel was timed.",
    )
    return Computed(
        tables={"alpha": pa.Table.from_pylist(rows)},
        results=(),
        caption=caption,
        assumptions=assumptions,
    )
