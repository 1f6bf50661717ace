"""Offline throughput of three GPUs, and of sixteen in tensor parallelism (Tessera, Fig. 8)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import pyarrow as pa

from c2c.cost.kernel_graph import Load, decoder, ranked
from c2c.models import load_spec
from c2c.ranges import AboveZero, BelowOne, Count
from c2c.systems.tessera import (
    Gpus,
    blocks_of_layers,
    joined,
    load_pair,
    plan,
    relaxation_s,
    ways,
    work_of,
)
from experiments.figure import SYSTEMS, Computed, Context, figure
from experiments.papers.tessera.claim_results import answer
from experiments.papers.tessera.workloads import GPT_OSS, MEDIANS, gpus_of, workload

__all__ = ["Clusters", "Sixteen", "Three", "compute", "sixteen", "three"]

LABELS: Final = {
    "left": "left", "replicas": "replicas", "prefill_decode": "PD",
    "attention_ffn": "AF", "kernels": "Tessera", "limit": "limit",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Three:
    """Two of a pair's left GPU and one right one, with their cards' rate."""

    pair: str
    gbps: AboveZero


@dataclass(frozen=True, slots=True, kw_only=True)
class Sixteen:
    """Ranks of pairs of a tensor-parallel model, under median lengths."""

    pair: str
    gbps: AboveZero
    model: str
    ranks: Count
    rows: Count
    prompts: Count


@dataclass(frozen=True, slots=True, kw_only=True)
class Clusters:
    """Experiment of Fig. 8: both clusters, and the planner's gap."""

    three: Three
    sixteen: Sixteen
    gap: BelowOne


@figure("tessera.fig8", title="Tessera, Fig. 8: clusters", experiment=Clusters,
        draw=".drawing.draw_cluster", needs=SYSTEMS)  # fmt: skip
def compute(context: Context, experiment: Clusters) -> Computed:
    """Return methods' throughput in both clusters, over the left group's."""
    rows: list[dict[str, Any]] = []
    left, right = gpus_of(experiment.three.pair)
    count, (more, others) = experiment.sixteen.ranks, gpus_of(experiment.sixteen.pair)
    setups = {
        "three": f"GPT-oss 20B, 2 {left} + {right}",
        "sixteen": f"{experiment.sixteen.model}, {count} {more} + {count} {others}",
    }
    runs = {
        "three": partial(three, experiment.three),
        "sixteen": partial(sixteen, experiment.sixteen),
    }
    for k, (name, run) in enumerate(runs.items()):
        rates = run(experiment.gap)
        rows += [
            {
                "cluster": name,
                "setup": setups[name],
                "way": way,
                "requests_per_s": rate,
                "relative": rate / rates["left"],
            }
            for way, rate in rates.items()
        ]
        if context.progress:
            context.progress(k + 1, 2)
    rate = {(r["cluster"], r["way"]): r["relative"] for r in rows}
    results = [
        answer(
            f"fig8{part}.vs_{base}",
            rate[cluster, "kernels"] / rate[cluster, way],
            f"Over replicas {rate[cluster, 'kernels'] / rate[cluster, 'replicas']:.2f}.",
        )
        for part, cluster in (("a", "three"), ("b", "sixteen"))
        for base, way in (("pd", "prefill_decode"), ("af", "attention_ffn"))
    ]
    return Computed(
        tables={"clusters": pa.Table.from_pylist(rows)},
        results=tuple(results),
        finding=(
            f"Tessera serves {rate['three', 'kernels']:.2f} times the left group with three GPUs "
            f"and {rate['sixteen', 'kernels']:.2f} with sixteen; GPUs apart serve "
            f"{rate['three', 'replicas']:.2f} and {rate['sixteen', 'replicas']:.2f}"
        ),
        caption=(
            "Bars: offline throughput relative to the left group alone, with three GPUs (left) "
            "and sixteen (right). Diamonds: our Tessera divided by the paper's gain over PD and AF."
        ),
        assumptions=(
            "PD of three GPUs has prefill on the L40S and decode on each A100.",
            "AF of three GPUs has attention on both A100 together.",
            "Tessera plans over all three GPUs.",
            f"{experiment.sixteen.model} has {experiment.sixteen.ranks} ranks, each a pair "
            "of GPUs, with collectives in the left group.",
            "PD and AF of sixteen GPUs run in their better direction.",
            "Replicas are groups that serve independently; the paper has no such column.",
            "NVLink between the A100 is an assumption.",
        ),
    )


def three(settings: Three, gap: float) -> dict[str, float]:
    """Return requests a second of GPT-oss 20B on two left GPUs and a right one."""
    pair = load_pair(settings.pair)
    served = workload(GPT_OSS)
    a100, l40s = pair.gpus
    gpus = (a100, a100, l40s)
    assert a100.gpu.nvlink_gbps is not None
    rates = [[a100.gpu.nvlink_gbps] * 3 for _ in range(3)]
    for g in (0, 1):
        rates[g][2] = rates[2][g] = settings.gbps
    link = Gpus(
        names=("a100", "a100_2", "l40s"), latency_s=((pair.wire.latency_s,) * 3,) * 3,
        gbps=tuple(tuple(row) for row in rates),
    )  # fmt: skip
    parts = [(work_of(p.kernels, gpus), p.steps) for p in served.phases]
    both = joined(parts)
    kinds = [f"{p.name} {k.kind}" for p in served.phases for k in p.kernels]
    blocks = blocks_of_layers([k.layer for k in served.kernels], kinds)
    placement = plan(both, link, "throughput", tied=blocks, gap=gap, time_limit_s=20.0)
    seconds = [work.times.sum(0) * steps for work, steps in parts]
    alone = [1 / float(sum(s[g] for s in seconds)) for g in range(3)]
    sent_s = served.handed_bytes / (settings.gbps * 1e9)
    return {
        "left": alone[0] + alone[1],
        "replicas": sum(alone),
        "prefill_decode": 1 / max(float(seconds[0][2]), float(seconds[1][0]) / 2, sent_s),
        "attention_ffn": _attention_on_two(served, gpus, settings.gbps),
        "kernels": 1 / placement.objective_s,
        "limit": 1 / relaxation_s(both),
    }


def _attention_on_two(served: Any, gpus: Any, gbps: float) -> float:
    spec = load_spec(GPT_OSS)
    split = ranked(served, 2, kv_heads=spec.kv_heads)
    attend = feed = sent = 0.0
    for phase, whole in zip(split.phases, served.phases, strict=True):
        ours = work_of(phase.kernels, gpus[:1]).times[:, 0]
        theirs = work_of(whole.kernels, gpus)
        attend += phase.steps * sum(
            float(t) for t, k in zip(ours, phase.kernels, strict=True) if k.is_attention
        )
        feed += phase.steps * sum(
            float(t)
            for t, k in zip(theirs.times[:, 2], whole.kernels, strict=True)
            if not k.is_attention
        )
        sent += phase.steps * sum(
            e.nbytes / (gbps * 1e9)
            for e in theirs.transfers
            if whole.kernels[e.source].is_attention and not whole.kernels[e.target].is_attention
        )
    return 1 / max(attend, feed, sent)


def sixteen(settings: Sixteen, gap: float) -> dict[str, float]:
    """Return requests a second of a model with pairs as ranks."""
    spec = load_spec(settings.model)
    pair = load_pair(settings.pair)
    load = Load(prompt=MEDIANS[0], output=MEDIANS[1], rows=settings.rows, prompts=settings.prompts)
    rank = ranked(decoder(spec, load), settings.ranks, kv_heads=spec.kv_heads)
    results = ways(rank, pair.gpus, gbps=settings.gbps, latency_s=pair.wire.latency_s, gap=gap)
    return {way.name: way.requests_per_s for way in results if way.name in LABELS}
