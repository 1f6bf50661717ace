"""HBM-resident GEMM against HybridGEMM on Superchips (C2CServe, section 9.5)."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import Annotated, Any

import numpy as np
import pyarrow as pa

from c2c.cost import calibration_for, gemm_time, load_constants, resident_gemm_time
from c2c.errors import SettingError
from c2c.hardware import link_gbps, load_mig, load_platform, slices
from c2c.ranges import Count, In
from experiments.claims import Result, answer
from experiments.experiment import named
from experiments.figure import Computed, Context, figure

__all__ = ["compute"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """Columns and depth of a GEMM's weights."""

    n: Count
    k: Count


@dataclass(frozen=True, slots=True, kw_only=True)
class Generations:
    """Experiment: GEMMs on several full chips; ratios are to the first."""

    platforms: tuple[str, ...]
    shapes: dict[str, Weights]
    drawn: str
    decode_m: Count
    m: tuple[Count, ...]
    alphas: Annotated[int, In("[2, 10**4)")]
    one_tile: tuple[Count, Count]

    def __post_init__(self) -> None:
        named(self.shapes, self.drawn, "shapes")
        if self.decode_m not in self.m:
            raise SettingError(
                "experiment.decode_m", self.decode_m, f"one of experiment.m={self.m}"
            )


@figure("projection", title="Section 9.5: later Superchips", experiment=Generations,
        draw=".drawing.hardware.draw_projection")  # fmt: skip
def compute(context: Context, experiment: Generations) -> Computed:
    """Return rates over M for both GEMMs and all platforms, and ratios to GH200."""
    constants = load_constants()
    alphas = np.linspace(0.0, 1.0, experiment.alphas)
    rows: list[dict[str, Any]] = []
    for name in experiment.platforms:
        platform = load_platform(name)
        whole = next(m for m in platform.mig if load_mig(m).instances == 1)
        chip = slices(platform, whole)[0]
        library = load_constants(calibration_for(name))
        shared = link_gbps(platform.link, context.link_variant)
        m = np.array(experiment.m)
        for shape, weights in experiment.shapes.items():
            n, k = weights.n, weights.k
            resident = resident_gemm_time(m, n, k, slice_=chip, constants=library).total_s
            one_tile = resident_gemm_time(
                m, n, k, slice_=chip, constants=library, tiles=(experiment.one_tile,), k_slices=(1,)
            ).total_s
            hybrid = gemm_time(
                m[:, None], n, k, alphas, slice_=chip, constants=constants, link_gbps=shared
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
                        "is_drawn": shape == experiment.drawn,
                        "kernel": kernel,
                        "m": a,
                        "tflops": 2e-12 * a * n * k / t,
                    }
                    for a, t in zip(m.tolist(), seconds.tolist(), strict=True)
                ]
    scaling = _scaling(rows, context, experiment)
    first, last = experiment.platforms[0], experiment.platforms[-1]
    drawn = experiment.shapes[experiment.drawn]
    at_last = {r["shape"]: r for r in scaling if r["platform"] == last}
    here = at_last[experiment.drawn]
    caption = (
        "Left: rate of one GEMM on full GPUs over M, with weights in HBM or streamed by HybridGEMM "
        f"at its best alpha. Right: its speed-up over GH200 at M={experiment.decode_m}; link "
        f"variant '{context.link_variant}'."
    )
    assumptions = (
        f"The GEMM has K={drawn.k}, N={drawn.n}.",
        f"Both kernels wait for memory at M={experiment.decode_m}.",
        "The measured link variant is the datasheet's rate times a measured share: GB300's for "
        "GB200, GH200's for Rubin.",
        "HybridGEMM has GH200's efficiencies on every chip.",
        "A GEMM with weights in HBM has its chip's own calibration; Rubin, a projection, has the "
        "middle of those measured.",
        f"One tile: every chip uses {'x'.join(map(str, experiment.one_tile))} with all of K in "
        "place of the best of a library's menu.",
        *(
            f"{shape} (K={experiment.shapes[shape].k}, N={experiment.shapes[shape].n}): with "
            f"weights in HBM {last} is {r['hbm_gemm']:.1f} times as fast as {first}, with one tile "
            f"{r['hbm_gemm_one_tile']:.1f} times."
            for shape, r in at_last.items()
        ),
    )
    return Computed(
        tables={
            "rates": pa.Table.from_pylist(rows),
            "scaling": pa.Table.from_pylist(scaling),
        },
        results=_results(scaling, context.link_variant, experiment),
        caption=caption,
        finding=f"From {first} to {last} a GEMM of M={experiment.decode_m} is "
        f"{here['hbm_gemm']:.1f} times as fast with weights in HBM, and "
        f"{here['hybrid_gemm']:.1f} times streamed: each follows its memory",
        assumptions=assumptions,
    )


def _scaling(
    rows: list[dict[str, Any]], context: Context, experiment: Generations
) -> list[dict[str, Any]]:
    rate = {
        (r["platform"], r["shape"], r["kernel"]): r["tflops"]
        for r in rows
        if r["m"] == experiment.decode_m
    }
    first = experiment.platforms[0]
    base = load_platform(first)
    out = []
    for name, shape in product(experiment.platforms, experiment.shapes):
        p = load_platform(name)
        out.append(
            {
                "platform": name,
                "shape": shape,
                "is_drawn": shape == experiment.drawn,
                "hbm_gemm": rate[name, shape, "hbm"] / rate[first, shape, "hbm"],
                "hbm_gemm_one_tile": rate[name, shape, "hbm_one_tile"]
                / rate[first, shape, "hbm_one_tile"],
                "hybrid_gemm": rate[name, shape, "hybrid"] / rate[first, shape, "hybrid"],
                "hbm_bandwidth": p.gpu.hbm_gbps / base.gpu.hbm_gbps,
                "link_bandwidth": link_gbps(p.link, context.link_variant)
                / link_gbps(base.link, context.link_variant),
                "host_memory": p.host.memory_bytes / base.host.memory_bytes,
            }
        )
    return out


def _results(
    scaling: list[dict[str, Any]], variant: str, experiment: Generations
) -> tuple[Result, ...]:
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
        if name in by_name
    )

    def follows(gemm: str, bandwidth: str) -> bool:
        return all(abs(r[gemm] / r[bandwidth] - 1) <= 0.2 for r in scaling)

    trend = answer(
        "c2cserve.sec95.trend",
        {
            "hbm_gemm": follows("hbm_gemm", "hbm_bandwidth"),
            "hybridgemm": follows("hybrid_gemm", "link_bandwidth"),
        },
        f"Speed-up at M={experiment.decode_m} within 20% of the bandwidth's ratio on all "
        f"platforms and for all shapes ({', '.join(experiment.shapes)}).",
        link_variant=variant,
    )
    return (*direct, trend)
