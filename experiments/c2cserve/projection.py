"""HBM-resident GEMM against HybridGEMM on later Superchips (C2CServe, section 9.5)."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pyarrow as pa

from c2c.cost import calibration_for, gemm_time, load_constants, resident_gemm_time
from c2c.hardware import link_gbps, load_mig, load_platform, slices
from experiments.claims import Result, answer
from experiments.figure import Computed, Context, figure

__all__ = ["compute"]

PLATFORMS = ("gh200", "gb200", "rubin")
# Llama-3 70B's largest GEMM, and one with few columns, whose tiles do not fill a large GPU. The
# paper states no shape, so its trend must hold for both.
SHAPES = {"gate_up": (57344, 8192), "down": (8192, 28672)}  # N, K
DECODE_M = 16
SWEEP_M = tuple(2**i for i in range(14))
ALPHAS = np.linspace(0.0, 1.0, 33)
# "The GEMM data-access pattern remains unchanged across generations", read literally: a tile of
# large GEMMs on Hopper, with all of K, for every shape and chip.
FIXED_TILE = (128, 256)


@figure("projection", title="Section 9.5: later Superchips", draw="hardware.draw_projection")
def compute(context: Context) -> Computed:
    """Return rates over M for both GEMMs on every platform, and their ratios to GH200."""
    constants = load_constants()
    rows: list[dict[str, Any]] = []
    for name in PLATFORMS:
        platform = load_platform(name)
        whole = next(m for m in platform.mig if load_mig(m).instances == 1)
        chip = slices(platform, whole)[0]
        library = load_constants(calibration_for(name))
        shared = link_gbps(platform.link, context.link_variant)
        m = np.array(SWEEP_M)
        for shape, (n, k) in SHAPES.items():
            resident = resident_gemm_time(m, n, k, slice_=chip, constants=library).total_s
            one_tile = resident_gemm_time(
                m, n, k, slice_=chip, constants=library, tiles=(FIXED_TILE,), k_slices=(1,)
            ).total_s
            hybrid = gemm_time(
                m[:, None], n, k, ALPHAS, slice_=chip, constants=constants, link_gbps=shared
            ).time_s.min(axis=1)
            for kernel, seconds in (
                ("hbm", resident),
                ("hbm_one_tile", one_tile),
                ("hybrid", hybrid),
            ):
                rows += [
                    {
                        "platform": name,
                        "shape": shape,
                        "kernel": kernel,
                        "m": a,
                        "tflops": 2e-12 * a * n * k / t,
                    }
                    for a, t in zip(m.tolist(), seconds.tolist(), strict=True)
                ]
    scaling = _scaling(rows, context)
    n, k = SHAPES["gate_up"]
    few = next(r for r in scaling if (r["platform"], r["shape"]) == ("rubin", "down"))
    many = next(r for r in scaling if (r["platform"], r["shape"]) == ("rubin", "gate_up"))
    caption = (
        "Left: rate of one GEMM on full GPUs over M, with weights in HBM or streamed by HybridGEMM "
        f"at its best alpha. Right: its speed-up over GH200 at M={DECODE_M}; link variant "
        f"'{context.link_variant}'."
    )
    assumptions = (
        f"The GEMM has K={k}, N={n}.",
        f"Both kernels wait for memory at M={DECODE_M}.",
        "The measured link variant is the datasheet's rate times a measured share: GB300's for "
        "GB200, GH200's for Rubin.",
        "HybridGEMM has GH200's efficiencies on every chip.",
        "A GEMM with weights in HBM has its chip's own calibration; Rubin, a projection, has the "
        "middle of those measured.",
        f"With fewer columns (K={SHAPES['down'][1]}, N={SHAPES['down'][0]}) the GEMM with weights "
        f"in HBM is {few['hbm_gemm']:.1f}x as fast on Rubin as on GH200.",
        f"One tile: every chip uses {FIXED_TILE[0]}x{FIXED_TILE[1]} with all of K in place of the "
        "best of a library's menu.",
        f"With one tile Rubin is {many['hbm_gemm_one_tile']:.1f}x as fast as GH200, and "
        f"{few['hbm_gemm_one_tile']:.1f}x with fewer columns.",
    )
    return Computed(
        tables={
            "rates": pa.Table.from_pylist(rows),
            "scaling": pa.Table.from_pylist(scaling),
        },
        results=_results(scaling, context.link_variant),
        caption=caption,
        assumptions=assumptions,
    )


def _scaling(rows: list[dict[str, Any]], context: Context) -> list[dict[str, Any]]:
    rate = {
        (r["platform"], r["shape"], r["kernel"]): r["tflops"] for r in rows if r["m"] == DECODE_M
    }
    base = load_platform("gh200")
    out = []
    for name, shape in product(PLATFORMS, SHAPES):
        p = load_platform(name)
        out.append(
            {
                "platform": name,
                "shape": shape,
                "hbm_gemm": rate[name, shape, "hbm"] / rate["gh200", shape, "hbm"],
                "hbm_gemm_one_tile": rate[name, shape, "hbm_one_tile"]
                / rate["gh200", shape, "hbm_one_tile"],
                "hybrid_gemm": rate[name, shape, "hybrid"] / rate["gh200", shape, "hybrid"],
                "hbm_bandwidth": p.gpu.hbm_gbps / base.gpu.hbm_gbps,
                "link_bandwidth": link_gbps(p.link, context.link_variant)
                / link_gbps(base.link, context.link_variant),
                "host_memory": p.host.memory_bytes / base.host.memory_bytes,
            }
        )
    return out


def _results(scaling: list[dict[str, Any]], variant: str) -> tuple[Result, ...]:
    by_name = {r["platform"]: r for r in scaling}
    inputs = "Ratio of inputs (conf/hardware)."
    direct = tuple(
        answer(
            f"c2cserve.sec95.{claim_id}",
            by_name[name][column],
            inputs,
            sample="in-sample",
            link_variant=variant,
        )
        for claim_id, name, column in (
            ("gb200_hbm", "gb200", "hbm_bandwidth"),
            ("rubin_cpu", "rubin", "host_memory"),
            ("rubin_hbm", "rubin", "hbm_bandwidth"),
            ("rubin_c2c", "rubin", "link_bandwidth"),
        )
    )

    def follows(gemm: str, bandwidth: str) -> bool:
        return all(abs(r[gemm] / r[bandwidth] - 1) <= 0.2 for r in scaling)

    trend = answer(
        "c2cserve.sec95.trend",
        {
            "hbm_gemm": follows("hbm_gemm", "hbm_bandwidth"),
            "hybridgemm": follows("hybrid_gemm", "link_bandwidth"),
        },
        f"Speed-up at M={DECODE_M} within 20% of the bandwidth's ratio on all platforms and "
        f"for both shapes ({', '.join(f'N={n}' for n, _ in SHAPES.values())}).",
        link_variant=variant,
    )
    return (*direct, trend)
