"""Table 1: two instances on one GPU each, against one in tensor parallelism over both."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Any, Final

import pyarrow as pa

from c2c.cost.kernel_graph import Batch, TimedGpu, kernel_s, step_kernels
from c2c.hardware import load_node
from c2c.models import load_spec, rank_of
from c2c.systems.weaver.times import Times, fitted, times_of
from experiments.claims import Result, answer, claim
from experiments.claims.robust import readings_table, under_readings
from experiments.figure import SYSTEMS, Computed, Context, figure
from experiments.weaver.served import A100, Served, constants_of

__all__ = ["BATCHES", "compute", "lm_head_s", "step_s", "throughput"]

BATCHES: Final = (16, 32, 64, 128)
CONTEXT: Final = 1024 + 128 // 2  # mean tokens of a sequence
MODEL: Final = "llama-3-8b"
_DEFAULT: Final = Served()


@figure("weaver.table1", title="WEAVER, Table 1: tensor parallelism", draw="weaver.draw_table1",
        needs=SYSTEMS)  # fmt: skip
def compute(context: Context) -> Computed:
    """Return tokens a second by batch, with the paper's."""
    rows = []
    for batch in BATCHES:
        printed = claim(f"weaver.table1.b{batch}").value
        ours = throughput(batch, fitted()["collective_s"])
        rows.append({"batch": batch, **ours, **{f"printed_{name}": printed[name] for name in ours}})
    able = ("constants", "host_seconds")
    results = under_readings(_results(), _results, able, everything=not context.quick)
    return Computed(
        tables={
            "throughput": pa.Table.from_pylist(rows),
            "readings": readings_table(results),
        },
        results=results,
        caption=(
            "Lines: decode throughput of Llama 3 8B by batch, two separate instances and tensor "
            "parallelism over both GPUs (tp2). Diamonds: Table 1 of the paper."
        ),
        assumptions=(
            f"Sequences have {CONTEXT:,} tokens.",
            "GPUs are two A100 of 40 GB, with the constants measured on an A100 of 80 GB.",
            "The time of an all-reduce beside its bytes is fitted to 1,487 tokens/s of tp2 at "
            "batch 16 (in-sample).",
        ),
    )


def throughput(batch: int, collective_s: float, base: Served = _DEFAULT) -> dict[str, float]:
    """Return tokens a second of both set-ups, and the slowdown in percent.

    Args:
      batch: sequences of each instance, and of the one over both GPUs.
      collective_s: fixed seconds of an all-reduce, without its bytes.
      base: constants of the GPU and host seconds of a step.
    """
    separate = 2 * batch / step_s(batch, 0.0, base)
    tp2 = batch / step_s(batch, collective_s, base)
    return {
        "separate_tok_s": separate, "tp2_tok_s": tp2, "slowdown_percent": 100 * (1 - tp2 / separate)
    }  # fmt: skip


def step_s(batch: int, collective_s: float = 0.0, base: Served = _DEFAULT) -> float:
    """Return the seconds of a decode step on one GPU; with collectives, on both."""
    times = _times(collective_s, base.constants)
    attention = times.spec.layers * times.attention_s([batch], CONTEXT)
    return base.host_seconds + float(times.rest_s([batch])[0] + attention[0])


@cache
def _times(collective_s: float, constants: str) -> Times:
    gpu, node = _gpu(constants), load_node(A100)
    spec, link = load_spec(MODEL), node.links[0]
    return times_of(
        rank_of(spec, 2) if collective_s else spec, gpu.part, gpu.constants, rows=max(BATCHES),
        collective_s=collective_s, gbps=link.gbps,
    )  # fmt: skip


def _gpu(constants: str) -> TimedGpu:
    platform = load_node(A100).platforms[0]
    return TimedGpu(name=platform.name, gpu=platform.gpu, constants=constants_of(constants))


def lm_head_s(rows: int, constants: str = _DEFAULT.constants) -> float:
    """Return the seconds of the LM head for `rows` sequences on an A100."""
    kernels = step_kernels(load_spec(MODEL), Batch(rows=rows, chunk=1, context=CONTEXT))
    head = next(kernel for kernel in kernels if kernel.kind == "head")
    return kernel_s(head, _gpu(constants))


def _collective_s(base: Served) -> float:
    """Return the all-reduce seconds for which batch 16 has the default reading's step time."""
    known, (first, *_) = fitted()["collective_s"], BATCHES
    once, twice = (step_s(first, n * known, base) for n in (1, 2))
    missing_s = step_s(first, known) - once
    return max(1e-9, known * (1.0 + missing_s / (twice - once)))  # 0 would be one GPU


def _results(**reading: Any) -> Iterator[Result]:
    base = replace(_DEFAULT, **reading)
    rows = {batch: throughput(batch, _collective_s(base), base) for batch in BATCHES}
    for batch, ours in rows.items():
        sample: Any = "in-sample" if batch == 16 else "out-of-sample"
        note = "1,487 tokens/s fix the collectives." if batch == 16 else ""
        yield answer(f"weaver.table1.b{batch}", ours, note, sample=sample)
    worst = max(row["slowdown_percent"] for row in rows.values())
    yield answer("weaver.sec23.tp_overhead", worst, "Of the four batches.", sample="in-sample")
    head_us = 1e6 * lm_head_s(128, base.constants)
    yield answer("weaver.sec31.lm_head", head_us, "128 sequences; the paper states no batch.")
