"""Tables 1 and 2: a layer's modules, costs of operations."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa

from c2c.hardware import load_node
from c2c.models import load_spec, weight_bytes
from c2c.ranges import Count
from c2c.systems.cocoserve import (
    Operation,
    module_of,
    operation_bytes,
    operation_costs,
    operation_s,
    printed_speedup,
)
from c2c.systems.cocoserve.modules import kv_bytes
from experiments.claims import Result, answer, load_claims
from experiments.figure import SYSTEMS, Computed, Context, figure

__all__ = ["Operations", "compute"]

COUNTS: Final = (1, 10, 20, 30, 40)  # layers of the printed operations
_MIB: Final = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Operations:
    """Experiment of Tables 1 and 2: model, node, layers, prompt tokens."""

    model: str
    node: str
    layers: tuple[Count, ...]
    tokens: Count


@figure("cocoserve.table2", title="CoCoServe, Tables 1, 2: modules and operations",
        experiment=Operations, draw=".drawing.draw_costs", needs=SYSTEMS)  # fmt: skip
def compute(_: Context, experiment: Operations) -> Computed:
    """Return a layer's modules and operations on layers."""
    spec, node, costs = load_spec(experiment.model), load_node(experiment.node), operation_costs()
    modules = [
        {
            "module": name, "memory_mb": module.bytes / _MIB,
            "gflops": module.flops(experiment.tokens) / 1e9,
        }
        for name in ("q", "attention", "gate", "layer")
        for module in (module_of(spec, name),)
    ]  # fmt: skip
    operations = [
        {
            "layers": count,
            "kind": kind,
            "seconds": operation_s(one, spec, node, costs),
            "memory_mb": operation_bytes(one, spec, costs) / _MIB,
            "printed_s": _printed(count, f"{_PRINTED[kind]}_s"),
            "printed_mb": _printed(count, "memory_mb"),
        }
        for count in experiment.layers
        for kind in _PRINTED
        for one in (Operation(kind=kind, layers=tuple(range(count)), device=1),)
    ]
    return Computed(
        tables={
            "modules": pa.Table.from_pylist(modules),
            "operations": pa.Table.from_pylist(operations),
        },
        results=tuple(_results(experiment, modules, operations)),
        finding=_finding(operations),
        caption=(
            f"Lines: time and memory of operations on layers of {experiment.model}, ours. "
            "Diamonds: Table 2 of the paper."
        ),
        assumptions=(
            "Layers are in BF16, and a module's operations are those of a prompt of "
            f"{experiment.tokens} tokens.",
            "One MB is 2^20 bytes.",
            "An operation's memory is whole blocks of 2 MiB for each matrix, and a process.",
            "An operation's time is a fixed part and its bytes over a link of 25 GB/s.",
            "The fixed parts of both operations are fitted to one layer (in-sample).",
            "The coordination time is fitted to 39.1 ms (in-sample).",
            "Values of 10 to 40 layers are predicted.",
            "The paper's times of 20 and 30 layers would need 37 and 48 GB/s on a link of 31.5 "
            "GB/s.",
        ),
    )


_PRINTED: Final[dict[Any, str]] = {"replicate": "replication", "migrate": "migration"}


def _printed(count: int, name: str) -> float | None:
    entry = load_claims().get(f"cocoserve.table2.n{count}")
    return float(entry.value[name]) if entry else None


def _finding(operations: list[dict[str, Any]]) -> str:
    def range_of(kind: str) -> str:
        seconds = [r["seconds"] for r in operations if r["kind"] == kind]
        return f"{min(seconds):.2g} to {max(seconds):.2g} s"

    counts = [r["layers"] for r in operations]
    return (
        f"{min(counts)} to {max(counts)} layers are copied in {range_of('replicate')} and moved in "
        f"{range_of('migrate')}"
    )


def _results(
    experiment: Operations, modules: list[dict[str, Any]], operations: list[dict[str, Any]]
) -> Iterator[Result]:
    spec, costs, tokens = load_spec(experiment.model), operation_costs(), experiment.tokens
    costs_of = {m["module"]: {k: m[k] for k in ("memory_mb", "gflops")} for m in modules}
    for name, module in (
        ("qkvo", "q"), ("self_attn", "attention"), ("ffn_proj", "gate"), ("decoder_layer", "layer"),
    ):  # fmt: skip
        yield _answer(f"table1.{name}", costs_of[module])
    scores = module_of(spec, "attention").flops(tokens) - 4 * module_of(spec, "q").flops(tokens)
    yield _answer("sec33.attn_score", scores / 1e9)
    for name, module in (("attn", "attention"), ("ffn", "gate")):
        yield _answer(
            f"sec33.{name}_density", costs_of[module]["gflops"] / costs_of[module]["memory_mb"]
        )
    yield _answer("sec2.params_per_layer", module_of(spec, "layer").bytes / spec.dtype_bytes)
    d = spec.hidden
    square = module_of(spec, "q").bytes == d * d * spec.dtype_bytes
    whole = module_of(spec, "attention").bytes == 4 * d * d * spec.dtype_bytes
    yield _answer(
        "sec2.attn_params",
        {"q,k,v,o each": "d_model^2" if square else "", "total": "4*d_model^2" if whole else ""},
    )
    yield _answer("sec23.instance_op_memory", weight_bytes(spec) / 1e9)
    rising = [printed_speedup([2] * k + [1] * (40 - k), 0.1) for k in range(0, 41, 5)]
    yield _answer("eq4.monotone", {"S": rising})
    yield _answer(
        "sec33.kv_size",
        {"order": "0.1 to a few" if _in_order(kv_bytes(spec, 1) * spec.layers) else "other"},
        "Batches of 1 to 15 with 128 to 341 tokens each, all layers.",
    )
    row_of = {(r["layers"], r["kind"]): r for r in operations}
    if not {*COUNTS} <= {*experiment.layers}:
        return  # the rest compares the printed operations
    for count in COUNTS:
        copied, moved = row_of[count, "replicate"], row_of[count, "migrate"]
        yield _answer(
            f"table2.n{count}",
            {
                "replication_s": copied["seconds"], "migration_s": moved["seconds"],
                "memory_mb": copied["memory_mb"],
            },
            "Memory and times count as one here; memory alone agrees to the MiB.",
        )  # fmt: skip
    seconds = [row_of[count, "replicate"]["seconds"] for count in (1, 40)]
    yield _answer("table2.time_factor", seconds[1] / seconds[0])
    memory = [row_of[count, "replicate"]["memory_mb"] for count in COUNTS]
    steps = np.diff(memory) / np.diff(COUNTS)
    same = all(
        row_of[n, "replicate"]["memory_mb"] == row_of[n, "migrate"]["memory_mb"] for n in COUNTS
    )
    yield _answer(
        "table2.memory_linear",
        {
            "memory": "affine in layers" if np.ptp(steps) == 0 else "other",
            "replication": "= migration" if same else "other",
        },
    )
    yield _answer("sec65.coordination", 1e3 * costs.coordination_s)
    yield _answer("intro.op_time", seconds[0], "A replication of one layer, which is fitted.")
    node = load_node(experiment.node)
    taken = node.links[0].gbps / node.platforms[0].gpu.hbm_gbps
    beside = "A copy's share of the card's memory rate; nothing else of a neighbour is touched."
    yield _answer("sec8.throughput_jitter", 100 * taken, beside)
    yield _answer("sec8.latency_jitter", 100 * (1 / (1 - taken) - 1), beside)


def _in_order(token_bytes: int) -> bool:
    least, most = (token_bytes * tokens / 1e9 for tokens in (128, 15 * 341))
    return 0.05 <= least <= 1.0 <= most <= 10.0


def _answer(name: str, ours: Any, note: str = "") -> Result:
    return answer(f"cocoserve.{name}", ours, note)
