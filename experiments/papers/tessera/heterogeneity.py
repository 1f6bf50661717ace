"""Kernels faster on an L40S than on an A100 (Table I, Figs. 2 and 3)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Final

import numpy as np
import pyarrow as pa

from c2c.cost.kernel_graph import StepKernel, kernel_s
from c2c.errors import unknown_name
from c2c.hardware import Gpu, load_platform
from c2c.ranges import OneOf
from c2c.systems.tessera import load_pair, work_of
from experiments.claims import Result
from experiments.claims.robust import readings_table, under_readings
from experiments.figure import SYSTEMS, Computed, Context, figure
from experiments.papers.tessera.claim_results import answer
from experiments.papers.tessera.workloads import GPT_OSS, LABELS, SAID, WORKLOADS, gpus_of, workload

__all__ = ["Kernels", "compute"]

_TABLE1: Final = {
    "a100": "a100_80", "h100": "h100_sxm", "b200": "b200", "l40s": "l40s",
    "rtxpro6000": "rtx_pro_6000",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernels:
    """Experiment of Figs. 2 and 3: a pair, workloads, and the split one."""

    pair: str
    workloads: tuple[Annotated[str, OneOf(*WORKLOADS)], ...]
    split: str

    def __post_init__(self) -> None:
        if self.split not in self.workloads:
            raise unknown_name("experiment.split", self.split, self.workloads)


@figure("tessera.fig2", title="Tessera, Figs. 2, 3, Table I: kernels by GPU",
        experiment=Kernels, draw=".drawing.draw_heterogeneity", needs=SYSTEMS)  # fmt: skip
def compute(context: Context, experiment: Kernels) -> Computed:
    """Return kernels' ratios of times, and shares by workload and group."""
    rows = []
    for name in context.each(experiment.workloads):
        rows += _kernels(experiment.pair, name)
    shares, by_group = _shares_of(rows, experiment)

    def answers(**reading: Any) -> Iterator[Result]:
        return _results(experiment, **reading)

    is_whole = set(experiment.workloads) == set(WORKLOADS)
    results = (
        under_readings(answers(), answers, SAID, everything=not context.quick) if is_whole else ()
    )
    count, time = _means(shares)
    left, right = gpus_of(experiment.pair)
    caption = (
        f"Left: share of kernels up to a ratio of their times on {right} and {left}. Right: share "
        f"of kernels or time that is faster on {right}; diamonds: the paper."
    )
    assumptions = (
        "Kernels are those of prefill and decode.",
        "Matrix products take times of the cost model, from public measurements of both GPUs.",
        "All other kernels take datasheet rates of tensor cores, CUDA cores, memory, L2 and "
        "launches.",
        "The paper's shares are measured.",
        "The second GPU's mean speed is fitted (in-sample), and nothing else is.",
    )
    tables = {
        "readings": readings_table(results),
        "kernels": pa.Table.from_pylist(rows),
        "shares": pa.Table.from_pylist(
            [
                *({"what": LABELS[s["workload"]], "weighting": w, "percent": s[f"{w}_percent"]}
                  for s in shares for w in ("count", "time")),
                *({"what": g, "weighting": "group", "percent": p} for g, p in by_group.items()),
            ]
        ),
    }  # fmt: skip
    return Computed(
        tables=tables,
        results=results,
        finding=(
            f"{count:.0f} % of kernels, with {time:.0f} % of the time, run faster on {right} than "
            f"on {left}"
        ),
        caption=caption,
        assumptions=assumptions,
    )


def _means(shares: Sequence[Mapping[str, Any]]) -> tuple[float, float]:
    count, time = (
        float(np.mean([s[key] for s in shares])) for key in ("count_percent", "time_percent")
    )
    return count, time


def _shares_of(
    rows: list[dict[str, Any]], experiment: Kernels
) -> tuple[list[dict[str, Any]], dict[str, float]]:
    shares = [
        {"workload": name, **_shares([r for r in rows if r["workload"] == name])}
        for name in experiment.workloads
    ]
    ours = [r for r in rows if r["workload"] == experiment.split]
    groups = {
        "prefill": [r for r in ours if r["phase"] == "prefill"],
        "decode": [r for r in ours if r["phase"] == "decode"],
        "attention": [r for r in ours if r["attends"] and r["layer"] >= 0],
        "ffn": [r for r in ours if not r["attends"] and r["layer"] >= 0],
    }
    return shares, {group: _shares(members)["count_percent"] for group, members in groups.items()}


def _results(experiment: Kernels, **reading: Any) -> Iterator[Result]:
    pair, names = experiment.pair, experiment.workloads
    rows = [row for name in names for row in _kernels(pair, name, **reading)]
    shares, by_group = _shares_of(rows, experiment)
    count, time = _means(shares)
    diffusion = shares[names.index("sd3.5-medium")]["time_percent"]
    simulated = "Simulated; the paper measured kernels of vLLM and PyTorch."
    yield answer("fig2a.kernels_faster_l40s", count, simulated)
    yield answer("fig2b.time_share", time, simulated)
    yield answer("fig2b.time_share_diffusion", diffusion, simulated)
    yield from (answer(f"fig3a.{g}", by_group[g], simulated) for g in ("prefill", "decode"))
    yield from (answer(f"fig3b.{g}", by_group[g], simulated) for g in ("attention", "ffn"))
    yield from _hardware()
    yield from _examples(pair, **reading)


@cache
def _kernels(on: str, name: str, **reading: Any) -> list[dict[str, Any]]:
    pair, gpus = load_pair(on), list(gpus_of(on))
    rows = []
    for phase in workload(name, **reading).phases:
        times = work_of(phase.kernels, pair.gpus).times
        rows += [
            {
                "workload": name,
                "phase": phase.name,
                "kind": kernel.kind,
                "layer": kernel.layer,
                "attends": kernel.is_attention,
                "gpus": gpus,
                "a100_s": float(a) * phase.steps,
                "ratio": float(b / a),
            }
            for kernel, (a, b) in zip(phase.kernels, times, strict=True)
        ]
    return rows


def _shares(rows: list[dict[str, Any]]) -> dict[str, float]:
    faster = [r for r in rows if r["ratio"] < 1]
    return {
        "count_percent": 100 * len(faster) / len(rows),
        "time_percent": 100 * sum(r["a100_s"] for r in faster) / sum(r["a100_s"] for r in rows),
    }


def _hardware() -> tuple[Result, ...]:
    gpus = {row: load_platform(name).gpu for row, name in _TABLE1.items()}
    a100, l40s = gpus["a100"], gpus["l40s"]

    def for_price(gpu: Gpu) -> float:
        return _stated(gpu, "fp32_tflops") / _stated(gpu, "price")

    dear = [for_price(gpus[g]) / for_price(a100) for g in ("l40s", "rtxpro6000")]
    cores = _stated(l40s, "fp32_tflops") / _stated(a100, "fp32_tflops")
    ratios: Mapping[str, float] = {
        "l40s_cuda_vs_a100": cores,
        "l40s_tensor_vs_a100": l40s.bf16_tflops / a100.bf16_tflops,
        "l40s_bw_vs_a100": 100 * l40s.hbm_gbps / a100.hbm_gbps,
        "compute_per_dollar": float(np.mean(dear)),
    }
    return (
        *(
            answer(f"sec2a.{name}", ours, "Of Table I.", "identity")
            for name, ours in ratios.items()
        ),
        answer("sec2c.gemv_bw_ratio", a100.hbm_gbps / l40s.hbm_gbps, "Of Table I.", "identity"),
        *(
            answer(f"table1.{row}", _row(gpu), "An input.", "in-sample")
            for row, gpu in gpus.items()
        ),
    )


def _row(gpu: Gpu) -> dict[str, float]:
    return {
        "cuda_fp32_tflops": _stated(gpu, "fp32_tflops"),
        "tensor_bf16_tflops": gpu.bf16_tflops,
        "l2_mb": gpu.l2_bytes / 2**20,
        "memory_gb": gpu.hbm_bytes / 1e9,
        "bw_gb_per_s": gpu.hbm_gbps,
        "price_rel_l40s": _stated(gpu, "price"),
    }


def _stated(gpu: Gpu, name: str) -> float:
    value = getattr(gpu, name)
    assert value is not None, name
    return float(value)


def _examples(on: str, **reading: Any) -> tuple[Result, ...]:
    pair = load_pair(on)
    a100, l40s = pair.gpus

    def ratio(kernel: StepKernel) -> float:
        return kernel_s(kernel, l40s) / kernel_s(kernel, a100)

    n = 8192
    gemv = StepKernel(kind="gemv", layer=0, tensor_flops=2 * n * n, weight_bytes=2 * n * n,
                      read_bytes=2 * n, write_bytes=2 * n, product=(1, n, n))  # fmt: skip
    prefill = workload(GPT_OSS, **reading).phases[0].kernels
    flash = next(k for k in prefill if k.kind == "attention" and k.layer == 1)
    moved = gemv.weight_bytes + gemv.read_bytes + gemv.write_bytes
    return (
        answer("sec2c.gemv_intensity", gemv.tensor_flops / moved, "Of 16-bit weights.", "identity"),
        answer("sec2c.gemv_speedup", ratio(gemv), f"Simulated, {n} x {n}."),
        answer(
            "sec2c.flash_speedup", 1 / ratio(flash),
            "Simulated, GPT-oss 20B, a prompt of 1,020 tokens. Tensor cores, which bound it here, "
            "are 1.2 times in Table I, CUDA cores 4.7.",
        ),
    )  # fmt: skip
