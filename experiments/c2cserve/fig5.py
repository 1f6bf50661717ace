"""AsymGEMM's TFLOP/s and link utilisation over M and N (C2CServe, Fig. 5)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from c2c.cost import gemm_time, load_constants
from c2c.hardware import link_gbps, slices
from experiments.c2cserve.settings import gh200_of_the_paper
from experiments.claims import Result, answer
from experiments.figure import Computed, Context, figure

__all__ = ["compute"]

K = 4096
SWEEP_N = tuple(2**i for i in range(8, 16))
SWEEP_M = tuple(2**i for i in range(6, 15))
FIXED_M, FIXED_N = 1024, 16384


@figure("fig5", title="Fig. 5: GEMM shapes", draw="gemm.draw_fig5")
def compute(context: Context) -> Computed:
    """Return both sweeps on the full GPU."""
    gh200, constants = gh200_of_the_paper(), load_constants()
    shared = link_gbps(gh200.link, context.link_variant)
    full_gpu = slices(gh200, "1x96gb")[0]

    def sweep(name: str, m: Any, n: Any) -> list[dict[str, Any]]:
        m, n = np.broadcast_arrays(m, n)
        time = gemm_time(m, n, K, 0.0, slice_=full_gpu, constants=constants, link_gbps=shared)
        tflops = time.traffic.flops / time.time_s / 1e12
        used = time.traffic.link_bytes / time.time_s / (shared * 1e9)
        return [
            {"sweep": name, "m": a, "n": b, "tflops": t, "link_utilisation": u}
            for a, b, t, u in zip(*(v.tolist() for v in (m, n, tflops, used)), strict=True)
        ]  # fmt: skip

    over_n = sweep("n", FIXED_M, np.array(SWEEP_N))
    over_m = sweep("m", np.array(SWEEP_M), FIXED_N)
    peak = full_gpu.bf16_tflops * constants.mma_efficiency
    smallest = sweep("corner", SWEEP_M[0], np.array(SWEEP_N[:1]))[0]
    caption = (
        f"AsymGEMM's rate and share of the link used on the full GPU: (a) over N at M={FIXED_M}, "
        f"(b) over M at N={FIXED_N}; {context.link_text(shared)}."
    )
    assumptions = (
        f"The GEMM has K={K}.",
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
                f"Low: under a tenth of the attainable peak; M={SWEEP_M[0]}, N={SWEEP_N[0]}.",
            ),
        ),
        caption=caption,
        assumptions=assumptions,
    )


def _series(rows: list[dict[str, Any]]) -> dict[str, list[float]]:
    return {
        "tflops": [r["tflops"] for r in rows],
        "c2c_utilization": [r["link_utilisation"] for r in rows],
    }
