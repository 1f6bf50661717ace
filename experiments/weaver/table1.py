"""Table 1: two instances on a GPU each, against one over both with tensor parallelism."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any, Final

import pyarrow as pa

from c2c.cost import load_constants
from c2c.cost.kernel_graph import Batch, TimedGpu, kernel_s, step_kernels
from c2c.hardware import load_node
from c2c.models import load_spec
from c2c.systems.weaver.times import Times, fitted, rank_of, times_of
from experiments.claims import Result, answer, claim
from experiments.figure import SYSTEMS, Computed, Context, figure
from experiments.weaver.served import A100

__all__ = ["BATCHES", "compute", "lm_head_s", "step_s", "throughput"]

BATCHES: Final = (16, 32, 64, 128)
CONTEXT: Final = 1024 + 128 // 2  # tokens of a sequence in the mean
MODEL: Final = "llama-3-8b"


@figure("weaver.table1", title="WEAVER, Table 1: tensor parallelism", draw="weaver.draw_table1",
        needs=SYSTEMS)  # fmt: skip
def compute(_: Context) -> Computed:
    """Return tokens a second by batch, with the printed ones beside them."""
    collective_s = fitted()["collective_s"]
    rows = []
    for batch in BATCHES:
        printed = claim(f"weaver.table1.b{batch}").value
        ours = throughput(batch, collective_s)
        rows.append({"batch": batch, **ours, **{f"printed_{name}": printed[name] for name in ours}})
    head_us = 1e6 * lm_head_s(128)
    return Computed(
        tables={"throughput": pa.Table.from_pylist(rows)},
        results=tuple(_results(rows, head_us)),
        caption=(
            "Llama 3 8B, decode steps of sequences of 1,088 tokens on two A100 of 40 GB; the "
            "constants are those measured on the A100 of 80 GB. An all-reduce's time beside its "
            "bytes is fitted to 1,487 tokens/s at batch 16 with tensor parallelism (in-sample)."
        ),
    )


def throughput(batch: int, collective_s: float) -> dict[str, float]:
    """Return tokens a second of both, and the slowdown in percent.

    Args:
      batch: sequences of each instance, and of the one over both GPUs.
      collective_s: of an all-reduce beside its bytes.
    """
    separate = 2 * batch / step_s(batch)
    tp2 = batch / step_s(batch, collective_s)
    return {
        "separate_tok_s": separate, "tp2_tok_s": tp2, "slowdown_percent": 100 * (1 - tp2 / separate)
    }  # fmt: skip


def step_s(batch: int, collective_s: float = 0.0) -> float:
    """Return a decode step on one GPU; with collectives, on both."""
    times = _times(collective_s)
    attention = times.spec.layers * times.attention_s([batch], CONTEXT)
    return float(times.rest_s([batch])[0] + attention[0])


@cache
def _times(collective_s: float) -> Times:
    gpu, node = _gpu(), load_node(A100)
    spec, link = load_spec(MODEL), node.links[0]
    return times_of(
        rank_of(spec, 2) if collective_s else spec, gpu.part, gpu.constants, rows=max(BATCHES),
        collective_s=collective_s, gbps=link.gbps,
    )  # fmt: skip


def _gpu() -> TimedGpu:
    platform = load_node(A100).platforms[0]
    return TimedGpu(name=platform.name, gpu=platform.gpu, constants=load_constants("a100_sxm"))


def lm_head_s(rows: int) -> float:
    """Return the LM head's time of so many sequences on an A100."""
    kernels = step_kernels(load_spec(MODEL), Batch(rows=rows, chunk=1, context=CONTEXT))
    head = next(kernel for kernel in kernels if kernel.kind == "head")
    return kernel_s(head, _gpu())


def _results(rows: list[dict[str, Any]], head_us: float) -> Iterator[Result]:
    for row in rows:
        ours = {name: row[name] for name in ("separate_tok_s", "tp2_tok_s", "slowdown_percent")}
        sample: Any = "in-sample" if row["batch"] == 16 else "out-of-sample"
        note = "1,487 tokens/s fix the collectives." if row["batch"] == 16 else ""
        yield answer(f"weaver.table1.b{row['batch']}", ours, note, sample=sample)
    worst = max(row["slowdown_percent"] for row in rows)
    yield answer("weaver.sec23.tp_overhead", worst, "Of the four batches.", sample="in-sample")
    yield answer("weaver.sec31.lm_head", head_us, "128 sequences; the paper states no batch.")
