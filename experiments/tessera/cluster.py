"""Offline throughput of three GPUs, and of sixteen in tensor parallelism (Tessera, Fig. 8)."""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa

from c2c.cost.kernel_graph import Load, decoder, ranked
from c2c.models import load_spec
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
from experiments.tessera.answering import answer
from experiments.tessera.workloads import GPT_OSS, MEDIANS, workload

__all__ = ["compute", "sixteen", "three"]

# Network cards of the testbeds: inputs.
_NIC_THREE, _NIC_SIXTEEN = 25.0, 50.0
_RANKS: Final = 8
_GAP: Final = {"quick": 0.06, "full": 0.02}
_LOAD: Final = Load(prompt=MEDIANS[0], output=MEDIANS[1], rows=256, prompts=8)
LABELS: Final = {
    "left": "left", "replicas": "replicas", "prefill_decode": "PD",
    "attention_ffn": "AF", "kernels": "Tessera", "limit": "limit",
}  # fmt: skip


@figure("tessera.fig8", title="Tessera, Fig. 8: clusters", draw="tessera.draw_cluster",
        needs=SYSTEMS)  # fmt: skip
def compute(context: Context) -> Computed:
    """Return the throughput of each method in both clusters, relative to the left group alone."""
    rows: list[dict[str, Any]] = []
    for k, (name, made) in enumerate((("three", three), ("sixteen", sixteen))):
        found = made(_GAP[context.profile])
        rows += [
            {"cluster": name, "way": way, "requests_per_s": rate, "relative": rate / found["left"]}
            for way, rate in found.items()
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
        caption=(
            "Bars: offline throughput relative to the left group alone, with three GPUs (left) "
            "and sixteen (right). Diamonds: our Tessera divided by the paper's gain over PD and AF."
        ),
        assumptions=(
            "PD of three GPUs has prefill on the L40s and decode on each A100.",
            "AF of three GPUs has attention on both A100 together.",
            "Tessera plans over all three GPUs.",
            f"Qwen3 235B has {_RANKS} ranks, each a pair of GPUs, with collectives in the left "
            "group.",
            "PD and AF of sixteen GPUs run in their better direction.",
            "Replicas are groups that serve independently; the paper has no such column.",
            "NVLink between the A100 is an assumption.",
        ),
    )


def three(gap: float) -> dict[str, float]:
    """Return requests a second of GPT-oss 20B on two A100 and an L40s."""
    pair = load_pair("a100_l40s")
    served = workload(GPT_OSS)
    a100, l40s = pair.gpus
    gpus = (a100, a100, l40s)
    assert a100.gpu.nvlink_gbps is not None
    rates = [[a100.gpu.nvlink_gbps] * 3 for _ in range(3)]
    for g in (0, 1):
        rates[g][2] = rates[2][g] = _NIC_THREE
    link = Gpus(
        names=("a100", "a100_2", "l40s"), latency_s=((pair.wire.latency_s,) * 3,) * 3,
        gbps=tuple(tuple(row) for row in rates),
    )  # fmt: skip
    parts = [(work_of(p.kernels, gpus), p.steps) for p in served.phases]
    both = joined(parts)
    kinds = [f"{p.name} {k.kind}" for p in served.phases for k in p.kernels]
    blocks = blocks_of_layers([k.layer for k in served.kernels], kinds)
    made = plan(both, link, "throughput", tied=blocks, gap=gap, time_limit_s=20.0)
    seconds = [work.times.sum(0) * steps for work, steps in parts]
    alone = [1 / float(sum(s[g] for s in seconds)) for g in range(3)]
    sent_s = served.handed_bytes / (_NIC_THREE * 1e9)
    return {
        "left": alone[0] + alone[1],
        "replicas": sum(alone),
        "prefill_decode": 1 / max(float(seconds[0][2]), float(seconds[1][0]) / 2, sent_s),
        "attention_ffn": _attention_on_two(served, gpus),
        "kernels": 1 / made.objective_s,
        "limit": 1 / relaxation_s(both),
    }


def _attention_on_two(served: Any, gpus: Any) -> float:
    """Return AF with attention on two A100 ranks and other kernels on the L40s."""
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
            e.nbytes / (_NIC_THREE * 1e9)
            for e in theirs.transfers
            if whole.kernels[e.source].is_attention and not whole.kernels[e.target].is_attention
        )
    return 1 / max(attend, feed, sent)


def sixteen(gap: float) -> dict[str, float]:
    """Return requests a second of Qwen3 235B on eight B200 and eight H100: a pair a rank."""
    spec = load_spec("qwen3-235b-a22b")
    pair = load_pair("b200_h100")
    rank = ranked(decoder(spec, _LOAD), _RANKS, kv_heads=spec.kv_heads)
    found = ways(rank, pair.gpus, gbps=_NIC_SIXTEEN, latency_s=pair.wire.latency_s, gap=gap)
    return {way.name: way.requests_per_s for way in found if way.name in LABELS}
