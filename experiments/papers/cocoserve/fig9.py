"""Figs. 2 and 9: memory use of serving, and idle resources at low rates."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from c2c.hardware import load_node
from c2c.models import load_spec, param_count
from c2c.ranges import Count
from c2c.systems.cocoserve import kv_bytes
from experiments.claims import Result, answer
from experiments.claims.robust import readings_table, under_readings
from experiments.figure import SIMULATOR, Computed, Context, figure
from experiments.papers.cocoserve.baselines import OURS, SAID, coco, under, vllm
from experiments.papers.cocoserve.batch_server import (
    ANSWER_TOKENS,
    CARD_BYTES,
    NODE,
    PAGED,
    Served,
    batch_of,
    drained,
    first_bytes,
)

__all__ = ["Used", "compute"]

_PAGE: Final = 16  # tokens of a page of keys and values


@dataclass(frozen=True, slots=True, kw_only=True)
class Used:
    """Experiment of Figs. 2 and 9: server, requests, readings."""

    server: Served
    peak: Count
    low_rates: tuple[Count, ...]
    cards_bytes: tuple[Count, ...]


@figure("cocoserve.fig9", title="CoCoServe, Figs. 2, 9: memory in use",
        experiment=Used, draw=".drawing.draw_used", needs=SIMULATOR)  # fmt: skip
def compute(context: Context, experiment: Used) -> Computed:
    """Return systems' memory at the peak, and idle resources at low rates."""
    base, peak = experiment.server, experiment.peak
    systems = {"HFT": base, "vLLM": vllm(base), "CoCoServe": coco(base),
               "CoCoServe, static": coco(base, batching="static")}  # fmt: skip
    used: list[dict[str, Any]] = [
        {
            "system": name, "hbm_bytes": hbm, "used_gb": bytes_used(served, peak, hbm) / 1e9,
            "idle_gb": (hbm - bytes_used(served, peak, hbm)) / 1e9,
        }
        for hbm in experiment.cards_bytes
        for name, served in systems.items()
    ]  # fmt: skip
    idle: list[dict[str, Any]] = [
        {"system": name, "rate": rate, **idle_percent(served, rate)}
        for name, served in (("HFT", base), ("vLLM", vllm(base)))
        for rate in experiment.low_rates
    ]

    def answers(**reading: Any) -> Iterator[Result]:
        other, more = under(base, reading)
        return _results(experiment, other, **more)

    results = under_readings(
        answers(), answers, SAID | OURS | {"idle"}, everything=not context.quick
    )
    now = {r["system"]: r["used_gb"] for r in used if r["hbm_bytes"] == experiment.cards_bytes[0]}
    return Computed(
        tables={
            "used": pa.Table.from_pylist(used),
            "idle": pa.Table.from_pylist(idle),
            "readings": readings_table(results),
        },
        results=results,
        finding=f"Memory in use with {peak} requests at once: "
        + ", ".join(f"{name} {gb:.1f} GB" for name, gb in now.items()),
        caption=(
            f"Left: memory in use with {peak} requests at once; diamonds: the paper. Right: idle "
            "memory and compute at low rates. HFT: Hugging Face Transformers."
        ),
        assumptions=(
            f"The model is {base.model} on an A100 of 40 GB.",
            "Memory in use counts weights, 499 MiB of a process, and the most keys and values.",
            f"The batch of HFT (Hugging Face Transformers) has {base.batch} requests.",
            "vLLM's batch has as many requests as fit 0.9 of the card in pages of 16 tokens.",
            "Idle memory is memory without weights or sequences.",
            "Idle compute is relative to 312 TFLOP/s.",
            "CoCoServe copies all layers: half of its sequences are on the second card.",
            "vLLM reserves 0.9 of the card at its start, however little of it is used.",
        ),
    )


def _results(
    experiment: Used, base: Served, *, idle: str = "memory", **reading: Any
) -> Iterator[Result]:
    servers = (coco(base, **reading), base, vllm(base))
    used = [bytes_used(served, experiment.peak, base.hbm_bytes) / 1e9 for served in servers]
    ours, hft, paged = used
    free_gb, hft_left, vllm_left = (base.hbm_bytes / 1e9 - gb for gb in used)
    shares = [
        idle_percent(served, rate)[idle] for served in servers[1:] for rate in experiment.low_rates
    ]
    first = "Of the first card, which computes half of the sequences of copied layers."
    yield answer("cocoserve.fig2.idle_low_rate", [min(shares), max(shares)])
    yield answer("cocoserve.fig9.used", ours, first)
    yield answer("cocoserve.fig9.waste_vs_hft", ours - hft, first)
    yield answer("cocoserve.fig9.waste_vs_vllm", ours - paged, first)
    yield answer("cocoserve.fig9.frag_vs_hft", hft_left / free_gb, first)
    yield answer("cocoserve.fig9.frag_vs_vllm", vllm_left / free_gb, first)


def bytes_used(served: Served, rate: int, hbm_bytes: float = CARD_BYTES) -> float:
    """Return the most bytes of weights and sequences on the first card."""
    tokens, spec = served.prompt_tokens + ANSWER_TOKENS, load_spec(served.model)
    home = 1.0 - (1.0 - 1.0 / served.copies) * served.layers / spec.layers  # share of rows
    if served.engine == "static":
        return first_bytes(served, round(home * min(rate, batch_of(served))), tokens)
    bare, row = first_bytes(served, 0, 0), kv_bytes(spec) * spec.layers
    row *= -(-tokens // _PAGE) * _PAGE
    return bare + row * min(home * rate, int((PAGED * hbm_bytes - bare) / row))


def idle_percent(served: Served, rate: int) -> dict[str, Any]:
    """Return idle percentages of memory and operations, and the mean."""
    gpu = load_node(NODE).platforms[0].gpu
    done = 2 * param_count(load_spec(served.model)) * rate * ANSWER_TOKENS
    compute = 100.0 * (1.0 - done / (drained(served, rate).makespan_s * gpu.bf16_tflops * 1e12))
    memory = 100.0 * (1.0 - bytes_used(served, rate, served.hbm_bytes) / served.hbm_bytes)
    return {"memory": memory, "compute": compute, "mean": (memory + compute) / 2}
