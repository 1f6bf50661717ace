"""Table 1: two instances on a GPU each, against one over both."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Final

import pyarrow as pa

from c2c.cost.kernel_graph import Batch, TimedGpu, kernel_s, step_kernels
from c2c.hardware import load_node
from c2c.models import load_spec, rank_of
from c2c.ranges import Count
from c2c.systems.weaver.times import Times, fitted, times_of
from experiments.claims import Result, answer, load_claims
from experiments.claims.robust import readings_table, under_readings
from experiments.figure import SYSTEMS, Computed, Context, figure
from experiments.papers.weaver.two_models import Served, constants_of

__all__ = ["Parallelism", "compute", "lm_head_s", "step_s", "throughput"]

_HEAD_ROWS: Final = 128  # sequences of the LM head of section 3.1, which states no number


@dataclass(frozen=True, slots=True, kw_only=True)
class Parallelism:
    """Experiment of Table 1: `pair`'s constants and host seconds, model, batches, lengths."""

    pair: Served
    model: str
    batches: tuple[Count, ...]
    prompt_tokens: Count
    answer_tokens: Count

    @property
    def context(self) -> int:
        """Mean tokens of a sequence."""
        return self.prompt_tokens + self.answer_tokens // 2

    def under(self, **reading: Any) -> Parallelism:
        """Return the experiment under a reading."""
        return replace(self, pair=replace(self.pair, **reading))


@figure("weaver.table1", title="WEAVER, Table 1: tensor parallelism", experiment=Parallelism,
        draw=".drawing.draw_table1", needs=SYSTEMS)  # fmt: skip
def compute(context: Context, experiment: Parallelism) -> Computed:
    """Return tokens a second by batch, with the paper's."""
    rows, losses = [], []
    for batch in experiment.batches:
        ours = throughput(experiment, batch, fitted()["collective_s"])
        entry = load_claims().get(f"weaver.table1.b{batch}")
        printed = {f"printed_{name}": entry.value[name] if entry else None for name in ours}
        rows.append({"batch": batch, **ours, **printed})
        losses.append(ours["slowdown_percent"])

    def answers(**reading: Any) -> Iterator[Result]:
        return _results(experiment.under(**reading))

    able = ("constants", "host_seconds")
    results = under_readings(answers(), answers, able, everything=not context.quick)
    return Computed(
        tables={
            "throughput": pa.Table.from_pylist(rows),
            "readings": readings_table(results),
        },
        results=results,
        finding=(
            f"Tensor parallelism over two GPUs loses {min(losses):.0f} to {max(losses):.0f} % of "
            "the throughput of two separate instances"
        ),
        caption=(
            f"Lines: decode throughput of {experiment.model} by batch, two separate instances and "
            "tensor parallelism over both GPUs. Diamonds: Table 1 of the paper."
        ),
        assumptions=(
            f"Sequences have {experiment.context:,} tokens.",
            "GPUs are two A100 of 40 GB, with the constants measured on an A100 of 80 GB.",
            "The time of an all-reduce beside its bytes is fitted to 1,487 tokens/s of tp2 at "
            "batch 16 (in-sample).",
        ),
    )


def throughput(experiment: Parallelism, batch: int, collective_s: float) -> dict[str, float]:
    """Return both set-ups' tokens a second, and the slowdown in percent."""
    separate = 2 * batch / step_s(experiment, batch)
    tp2 = batch / step_s(experiment, batch, collective_s)
    return {
        "separate_tok_s": separate, "tp2_tok_s": tp2, "slowdown_percent": 100 * (1 - tp2 / separate)
    }  # fmt: skip


def step_s(experiment: Parallelism, batch: int, collective_s: float = 0.0) -> float:
    """Return a decode step's seconds on one GPU; with collectives, on both."""
    times = _times(experiment, collective_s)
    attention = times.spec.layers * times.attention_s([batch], experiment.context)
    return experiment.pair.host_seconds + float(times.rest_s([batch])[0] + attention[0])


@cache
def _times(experiment: Parallelism, collective_s: float) -> Times:
    gpu, node = _gpu(experiment.pair), load_node(experiment.pair.node)
    spec, link = load_spec(experiment.model), node.links[0]
    return times_of(
        rank_of(spec, 2) if collective_s else spec, gpu.part, gpu.constants,
        rows=max(experiment.batches), collective_s=collective_s, gbps=link.gbps,
    )  # fmt: skip


def _gpu(pair: Served) -> TimedGpu:
    platform = load_node(pair.node).platforms[0]
    constants = constants_of(pair.constants, platform.name)
    return TimedGpu(name=platform.name, gpu=platform.gpu, constants=constants)


def lm_head_s(experiment: Parallelism, rows: int) -> float:
    """Return the LM head's seconds for `rows` sequences on a GPU."""
    batch = Batch(rows=rows, chunk=1, context=experiment.context)
    kernels = step_kernels(load_spec(experiment.model), batch)
    head = next(kernel for kernel in kernels if kernel.kind == "head")
    return kernel_s(head, _gpu(experiment.pair))


def _collective_s(experiment: Parallelism) -> float:
    """Return the all-reduce seconds with the default's time of the first batch."""
    base_s, first = fitted()["collective_s"], experiment.batches[0]
    once, twice = (step_s(experiment, first, n * base_s) for n in (1, 2))
    default = experiment.under(constants=_DEFAULT.constants, host_seconds=_DEFAULT.host_seconds)
    missing_s = step_s(default, first, base_s) - once
    return max(1e-9, base_s * (1.0 + missing_s / (twice - once)))  # 0 would be one GPU


def _results(experiment: Parallelism) -> Iterator[Result]:
    collective_s = _collective_s(experiment)
    rows = {batch: throughput(experiment, batch, collective_s) for batch in experiment.batches}
    for batch, ours in rows.items():
        if f"weaver.table1.b{batch}" not in load_claims():
            continue
        sample: Any = "in-sample" if batch == 16 else "out-of-sample"
        note = "1,487 tokens/s fix the collectives." if batch == 16 else ""
        yield answer(f"weaver.table1.b{batch}", ours, note, sample=sample)
    worst = max(row["slowdown_percent"] for row in rows.values())
    yield answer("weaver.sec23.tp_overhead", worst, "Of all batches.", sample="in-sample")
    head_us = 1e6 * lm_head_s(experiment, _HEAD_ROWS)
    note = f"{_HEAD_ROWS} sequences; the paper states no batch."
    yield answer("weaver.sec31.lm_head", head_us, note)


_DEFAULT: Final = Served()
