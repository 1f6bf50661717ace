"""Decode with weights streamed over NVLink-C2C."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from c2c.config import build
from c2c.cost import step_table
from c2c.errors import SettingError
from c2c.hardware import Slice, load_mig, load_platform, slices
from c2c.models import Deployment, ModelSpec, gemm_bytes, gemms
from c2c.ranges import AboveZero, Count
from c2c.serving import prepare
from c2c.simulator import simulate_in_memory
from c2c.workloads import RequestBlock, Workload
from experiments.figure import SIMULATOR, Computed, Context, figure
from experiments.measured.eager_engines import shapes
from experiments.measured.rows import OWN, read_folder
from experiments.papers.c2cserve.settings import composed

__all__ = ["Streaming", "compute", "streamed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Streaming:
    """Experiment: runs of the prototype, with layouts."""

    runs: dict[str, tuple[str, ...]]
    requests: Count
    rate_rps: AboveZero
    prompt_tokens: Count
    output_tokens: Count


@figure("streaming", title="Streamed decode beside a public prototype", experiment=Streaming,
        draw=".drawing.baselines.draw_streaming", needs=SIMULATOR, beyond=True)  # fmt: skip
def compute(context: Context, experiment: Streaming) -> Computed:
    """Return time between tokens by run, model and layout, and rates together."""
    rows: list[dict[str, Any]] = []
    measured = read_folder(OWN)["streamed_tokens"]
    pairs = [(run, layout) for run, layouts in experiment.runs.items() for layout in layouts]
    for run, layout in context.each(pairs):
        here = measured.take(measured["run"] == run)
        models = here["model"].tolist()
        ours = streamed(models, layout, experiment, context.link_variant)
        rows += [
            {
                "run": run, "layout": layout, "model": model, "measured_ms": float(ms),
                "ours_ms": ours[model], "ratio": ours[model] / float(ms),
                "measured_gbps": _layer_bytes(shapes()[model]) / float(ms) / 1e6,
                "ours_gbps": _layer_bytes(shapes()[model]) / ours[model] / 1e6,
            }
            for model, ms in zip(models, here["tbt_ms"], strict=True)
        ]  # fmt: skip
    return Computed(
        tables={"streaming": pa.Table.from_pylist(rows)},
        results=(),
        caption=(
            "Mean time between tokens of Qwen3 models that stream at once, each on a slice of a "
            "GH200: a public prototype and the simulator, link variant "
            f"'{context.link_variant}'."
        ),
        finding=_finding(rows),
        assumptions=(
            "Nothing is fitted to these measurements.",
            "The prototype's slices are not stated: each layout is computed, bars are its range.",
            f"{experiment.requests} requests at {experiment.rate_rps:g} a second, models in turn, "
            f"{experiment.prompt_tokens} + {experiment.output_tokens} tokens, one at a time each.",
            "AsymGEMM alone, as the prototype's name says; embedding and head stay in HBM.",
            "The host's time is left out, though the prototype has no CUDA graphs.",
            "Measured values are read from figures, within 3 %.",
        ),
        report=_report(rows),
    )


def streamed(
    models: Sequence[str], layout: str, experiment: Streaming, link: str
) -> dict[str, float]:
    """Return mean milliseconds between tokens of concurrent models."""
    places = slices(load_platform("gh200"), load_mig(layout))
    if len(places) < len(models):
        raise SettingError("experiment.runs", layout, f"a layout of {len(models)} slices or more")
    base = build(composed([
        "hardware=gh200", f"mig={layout}", f"link={link}", "system=c2cserve_letter",
        "system/chunk=fixed", f"system.chunk.tokens={experiment.prompt_tokens}",
        f"system.profile.chunks=[{experiment.prompt_tokens}]", "system/alpha=static",
        "system.alpha.initial=0.0", "system.max_batch=1", "system.check_slo=false",
        "system.starts_active=true", "workload=deterministic", "workload.requests=1",
    ])).serving  # fmt: skip
    specs = [_without_head(shapes()[model]) for model in models]
    deployments = tuple(
        Deployment(name=spec.name, spec=spec, ttft_slo_s=1e3, tpot_slo_s=1e3) for spec in specs
    )
    prepared = prepare(replace(base, deployments=deployments))
    count = experiment.requests
    block = RequestBlock(
        arrival_s=np.arange(count) / experiment.rate_rps,
        model=(np.arange(count) % len(models)).astype(np.int32),
        prompt_tokens=np.full(count, experiment.prompt_tokens, np.int32),
        output_tokens=np.full(count, experiment.output_tokens, np.int32),
    )
    workload = Workload(tuple(models), lambda: iter([block]), {"requests": count}, None)
    records = simulate_in_memory(prepared, workload).records
    tbt_s = (records.finished_s - records.first_token_s) / (experiment.output_tokens - 1)
    heads_s = [_head_s(shapes()[m], places[0], base) for m in models]
    return {
        model: 1e3 * (float(tbt_s[records.model == i].mean()) + heads_s[i])
        for i, model in enumerate(models)
    }


def _without_head(spec: ModelSpec) -> ModelSpec:
    """Return the shape without output projection: the prototype has it in HBM."""
    return replace(spec, vocab=1, tie_embeddings=True)


def _head_s(spec: ModelSpec, slice_: Slice, base: Any) -> float:
    table = step_table(
        spec, slice_, base.constants, 1.0, max_tokens=1, max_rows=1, alphas=(0.0,), weights="hbm"
    )
    return float(table.head_s[1, 0])


def _layer_bytes(spec: ModelSpec) -> float:
    return float(sum(g.count * gemm_bytes(spec, g) for g in gemms(spec) if g.kind != "head"))


def _finding(rows: Sequence[Mapping[str, Any]]) -> str:
    parts = []
    for run in dict.fromkeys(r["run"] for r in rows):
        ratios = [r["ratio"] for r in rows if r["run"] == run]
        parts.append(f"{min(ratios):.2f} to {max(ratios):.2f} ({run})")
    return f"Streamed decode over a public prototype's time, nothing fitted: {', '.join(parts)}"


def _report(rows: Sequence[Mapping[str, Any]]) -> tuple[tuple[str, ...], ...]:
    head = ("run", "slices", "model", "measured ms", "ours ms", "ratio", "together GB/s, ours")
    body = []
    for r in rows:
        alike = [o for o in rows if (o["run"], o["layout"]) == (r["run"], r["layout"])]
        together = [sum(o[k] for o in alike) for k in ("measured_gbps", "ours_gbps")]
        body.append(
            (
                r["run"], r["layout"], r["model"], f"{r['measured_ms']:.1f}", f"{r['ours_ms']:.1f}",
                f"{r['ratio']:.2f}", f"{together[0]:.0f}, {together[1]:.0f}",
            )
        )  # fmt: skip
    return (head, *body)
