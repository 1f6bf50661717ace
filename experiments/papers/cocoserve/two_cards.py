"""Uses of a second card."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import pyarrow as pa

from c2c.cost.kernel_graph import Batch, step_kernels, step_s, tensor_parallel, timed_gpus
from c2c.hardware import load_node
from c2c.models import load_spec
from c2c.ranges import Count
from c2c.systems.cocoserve import (
    Devices,
    Placement,
    devices_of,
    kv_bytes,
    layer_bytes,
    module_of,
    operation_costs,
    step_time,
)
from experiments.figure import SYSTEMS, Computed, Context, figure

__all__ = ["WAYS", "TwoCards", "compute", "most_rows", "seconds_of"]

WAYS: Final = ("one card", "20 layers copied", "40 layers copied", "second instance", "pipeline",
               "tensor parallel")  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class TwoCards:
    """Experiment: model, node of two cards, lengths, concurrent sequences."""

    model: str
    node: str
    prompt_tokens: Count
    answer_tokens: Count
    rows: tuple[Count, ...]

    @property
    def tokens(self) -> int:
        """Tokens of a sequence at its end."""
        return self.prompt_tokens + self.answer_tokens

    @property
    def context(self) -> int:
        """Mean cached tokens of a sequence."""
        return self.prompt_tokens + self.answer_tokens // 2


@figure("cocoserve.two_cards",
        title="Two cards: copies of layers and other ways",
        experiment=TwoCards, draw=".drawing.draw_two_cards", needs=SYSTEMS,
        beyond=True)  # fmt: skip
def compute(_: Context, experiment: TwoCards) -> Computed:
    """Return a step's seconds and tokens a second by sequences and method."""
    spec, node = load_spec(experiment.model), load_node(experiment.node)
    devices = devices_of(spec, node, most_rows=max(experiment.rows))
    most = most_rows(devices, experiment.tokens)
    rows = [
        {
            "way": way, "rows": count, "step_s": seconds,
            "tokens_per_s": count / seconds, "most_rows": most[way],
        }
        for way, step in seconds_of(devices, experiment.context).items()
        for count in experiment.rows
        if count <= most[way]
        for seconds in (step(count),)
    ]  # fmt: skip
    return Computed(
        tables={"steps": pa.Table.from_pylist(rows)},
        results=(),
        finding=_finding(rows),
        caption=(
            f"Lines: decode throughput and step time of {experiment.model} on two cards, by "
            "sequences at once; each ends at the cards' memory."
        ),
        assumptions=(
            "Cards are two A100 of 40 GB over PCIe.",
            f"Decode steps read {experiment.context} tokens a sequence.",
            f"A line ends when the KV cache of {experiment.tokens} tokens a sequence fills the "
            "cards.",
            "Two instances have half of the sequences each.",
            "The pipeline has two batches in flight, each with half of the sequences.",
            "Copies of layers share one batch.",
            "Transfers and all-reduces run at 25 GB/s and overlap with nothing.",
        ),
    )


def _finding(rows: list[dict[str, Any]]) -> str:
    best = {way: max(r["tokens_per_s"] for r in rows if r["way"] == way)
            for way in dict.fromkeys(r["way"] for r in rows)}  # fmt: skip
    ordered = sorted(best, key=lambda way: -best[way])
    most = ", ".join(f"{way} {best[way]:,.0f}" for way in ordered)
    return f"Most tokens/s of two cards: {most}"


def seconds_of(devices: Devices, context: int) -> Mapping[str, Callable[[int], float]]:
    """Return, by method, a step's seconds as a function of sequences."""
    layers = devices.spec.layers
    alone, runs = Placement.unscaled(layers), Placement.in_runs(layers, 2)
    step = partial(_step, devices, context)
    return {
        "one card": partial(step, alone),
        "20 layers copied": partial(step, alone.replicated(range(20), 1)),
        "40 layers copied": partial(step, alone.replicated(range(layers), 1)),
        "second instance": lambda rows: step(alone, -(-rows // 2)),
        "pipeline": lambda rows: _pipelined(devices, context, runs, -(-rows // 2)),
        "tensor parallel": lambda rows: _in_ranks(devices, context, rows),
    }


def most_rows(devices: Devices, tokens: int) -> dict[str, int]:
    """Return, by method, the most sequences with KV on the cards."""
    spec, cost = devices.spec, operation_costs()
    layer_size, outside = layer_bytes(spec)
    card = devices.node.platforms[0].gpu.hbm_bytes - cost.process_bytes
    copied, row = module_of(spec, "layer").allocated_bytes, tokens * kv_bytes(spec)
    n, first = spec.layers, card - outside - spec.layers * layer_size
    alone = first / (n * row)

    def by_copies(layers: int) -> float:
        on_first = first / ((n - layers / 2) * row)
        return min(on_first, (card - layers * copied) / (layers / 2 * row))

    shared = (2 * card - outside - n * layer_size) / (n * row)
    rows = (alone, by_copies(20), by_copies(n), 2 * int(alone), shared, shared)
    return dict(zip(WAYS, map(int, rows), strict=True))


def _step(devices: Devices, context: int, placement: Placement, rows: int) -> float:
    return step_time(placement, devices, batch=rows, context=context).seconds


def _pipelined(devices: Devices, context: int, runs: Placement, rows: int) -> float:
    step = step_time(runs, devices, batch=rows, context=context)
    return max(step.seconds, 2 * (step.layers_s / 2 + step.rest_s))


def _in_ranks(devices: Devices, context: int, rows: int) -> float:
    spec, link = devices.spec, devices.node.link(0, 1)
    assert link is not None  # every two cards of the node have one
    (gpu,) = timed_gpus(devices.node.gpus[0])
    whole = step_kernels(spec, Batch(rows=rows, chunk=1, context=context))
    rank, _ = tensor_parallel(whole, 2, kv_heads=spec.kv_heads)
    sums = [k for k in rank if k.wire_bytes]
    share = step_s([replace(k, wire_bytes=0.0) for k in rank], gpu).sum() / step_s(whole, gpu).sum()
    sent_s = sum(k.wire_bytes / (link.gbps * 1e9) + 2 * link.latency_s for k in sums)
    return float(share) * _step(devices, context, Placement.unscaled(spec.layers), rows) + sent_s
