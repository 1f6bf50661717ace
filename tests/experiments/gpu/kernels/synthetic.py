"""Rows as the benchmark would write them, from the traffic model at given rates."""

from __future__ import annotations

from typing import Any

from experiments.gpu.cases import Case, Row
from experiments.gpu.kernels import grid
from experiments.gpu.kernels.analysis import WHOLE, Bounds
from pallas_kernels.gemm import Gemm, choose, launch_traffic, plan_launch

BOUNDS = Bounds(
    link_gbps={132: 52.0, 56: 51.0, 28: 40.0, 16: 25.0},
    dma_gbps=54.0,
    hbm_gbps=4200.0,
    tflops=700.0,
)
FIG4 = ("c2cserve-fig4", 4096, 16384)


def row(spec: dict[str, Any], run: str = "r1", **columns: Any) -> Row:
    common = {"section": "kernels", "case": Case(spec=spec).key, "run": run, "status": "ok"}
    return common | spec | columns


def bounds(run: str = "r1") -> list[Row]:
    found = [
        row({"what": "bound", "of": "link_dma"}, run, gbps=BOUNDS.dma_gbps),
        row({"what": "bound", "of": "hbm"}, run, gbps=BOUNDS.hbm_gbps),
        row({"what": "bound", "of": "matmul"}, run, tflops=BOUNDS.tflops),
    ]
    return found + [
        row({"what": "bound", "of": "link_sm", "sm_limit": sms}, run, gbps=gbps)
        for sms, gbps in BOUNDS.link_gbps.items()
    ]


def predicted_s(row: Row) -> float:
    """Return the slowest of a launch's bytes over the link, bytes of device memory, and steps."""
    gemm = Gemm(m=-(-row["m"] // 8) * 8, k=row["k"], n=row["n"])
    config = choose(gemm, cluster=row["cluster"])
    plan = plan_launch(gemm, config, alpha=row["alpha"], sm_limit=row["sm_limit"])
    moved = launch_traffic(gemm, config, plan, l2_bytes=60.0 * 2**20)
    flops = 2.0 * config.tm * config.tn * config.tk * float(moved.cta_steps)
    return max(
        float(moved.link_bytes) / (BOUNDS.link_of(row["sm_limit"]) * 1e9),
        float(moved.hbm_bytes) / (BOUNDS.hbm_gbps * 1e9),
        flops * WHOLE / (BOUNDS.tflops * 1e12),
    )


def kernels(
    rows: tuple[int, ...] = (16, 512, 2048, 10240),
    sms: tuple[int, ...] = (132, 16),
    slowdown: float = 1.1,
    staged: float = 1.3,
) -> list[Row]:
    """Return bounds and the grid of the paper's shape, `slowdown` times the model's times."""
    found = bounds()
    for m in rows:
        for spec in grid.cell(*FIG4, m, sm_limits=sms, alphas=grid.ALPHAS):
            k, n = spec["k"], spec["n"]
            amounts = {
                "weight_bytes": 2 * k * n,
                "activation_bytes": 2 * m * (k + n),
                "flops": 2.0 * m * k * n,
                "tm": 256,
                "kc": 512,
                "tn": 128,
            }
            if spec["what"] == "hybrid":
                time_s = slowdown * predicted_s(spec)
            elif spec["what"] == "automatic":
                time_s = min(
                    r["time_s"] for r in found if r.get("m") == m and r["what"] == "hybrid"
                )
            else:
                copy_s = 0.0 if spec["what"] == "resident" else 2 * k * n / 54e9
                time_s = staged * (copy_s + amounts["flops"] / 700e12) + 1e-5
            found.append(row(spec, **amounts, time_s=time_s))
    return found
