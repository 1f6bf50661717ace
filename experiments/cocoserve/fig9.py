"""Figs. 2 and 9: memory use of serving, and idle resources at low rates."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

import pyarrow as pa

from c2c.hardware import load_node
from c2c.models import load_spec, param_count
from c2c.systems.cocoserve import kv_bytes
from experiments.claims import Result, answer
from experiments.claims.robust import readings_table, under_readings
from experiments.cocoserve.compared import HFT, SAID, VLLM, coco, server
from experiments.cocoserve.drained import (
    ANSWER_TOKENS,
    CARD_BYTES,
    NODE,
    PAGED,
    PEAK,
    Served,
    batch_of,
    drained,
    first_bytes,
)
from experiments.figure import SIMULATOR, Computed, Context, figure

__all__ = ["compute"]

_PAGE: Final = 16  # tokens of a page of keys and values
_LOW: Final = (3, 10)  # the rates of Fig. 2 go to 10 at most
_CARDS: Final = (CARD_BYTES, 40_000_000_000, 42_949_672_960)


@figure("cocoserve.fig9", title="CoCoServe, Figs. 2, 9: memory in use",
        draw="cocoserve.draw_used", needs=SIMULATOR)  # fmt: skip
def compute(context: Context) -> Computed:
    """Return the memory use of systems at the peak, and idle resources at low rates."""
    systems = {"HFT": HFT, "vLLM": VLLM, "CoCoServe": coco()}
    used: list[dict[str, Any]] = [
        {
            "system": name, "hbm_bytes": hbm, "used_gb": bytes_used(served, PEAK, hbm) / 1e9,
            "idle_gb": (hbm - bytes_used(served, PEAK, hbm)) / 1e9,
        }
        for hbm in _CARDS
        for name, served in systems.items()
    ]  # fmt: skip
    idle: list[dict[str, Any]] = [
        {"system": name, "rate": rate, **idle_percent(served, rate)}
        for name, served in (("HFT", HFT), ("vLLM", VLLM))
        for rate in _LOW
    ]
    results = under_readings(_results(), _results, SAID | {"idle"}, everything=not context.quick)
    return Computed(
        tables={
            "used": pa.Table.from_pylist(used),
            "idle": pa.Table.from_pylist(idle),
            "readings": readings_table(results),
        },
        results=results,
        caption=(
            f"Left: memory in use with {PEAK} requests at once; diamonds: the paper. Right: idle "
            "memory and compute at 3 and 10 requests."
        ),
        assumptions=(
            "The model is LLaMA-13B on an A100 of 40 GB.",
            "Memory in use counts weights, 499 MiB of a process, and the most keys and values.",
            "HFT's batch has 15 requests.",
            "vLLM's batch has as many requests as fit 0.9 of the card in pages of 16 tokens.",
            "Idle memory is memory without weights or sequences.",
            "Idle compute is relative to 312 TFLOP/s.",
            "vLLM reserves 0.9 of the card at its start, however little of it is used.",
        ),
    )


def _results(*, idle: str = "memory", **reading: Any) -> Iterator[Result]:
    base, _ = server(reading)
    servers = (coco(base), base, replace(base, engine="continuous"))
    used = [bytes_used(served, PEAK, base.hbm_bytes) / 1e9 for served in servers]
    ours, hft, vllm = used
    left, hft_left, vllm_left = (base.hbm_bytes / 1e9 - gb for gb in used)
    shares = [idle_percent(served, rate)[idle] for served in servers[1:] for rate in _LOW]
    without = "Algorithm 1 copies nothing with the literal gamma, so that it holds what HFT does."
    yield answer("cocoserve.fig2.idle_low_rate", [min(shares), max(shares)])
    yield answer("cocoserve.fig9.used", ours, without)
    yield answer("cocoserve.fig9.waste_vs_hft", ours - hft, without)
    yield answer("cocoserve.fig9.waste_vs_vllm", ours - vllm, without)
    yield answer("cocoserve.fig9.frag_vs_hft", hft_left / left, without)
    yield answer("cocoserve.fig9.frag_vs_vllm", vllm_left / left, without)


def bytes_used(served: Served, rate: int, hbm_bytes: float = CARD_BYTES) -> float:
    """Return the most bytes that weights and sequences hold on the first card.

    Args:
      served: server without copies.
      rate: number of concurrent requests.
      hbm_bytes: memory of the card.
    """
    tokens = served.prompt_tokens + ANSWER_TOKENS
    if served.engine == "static":
        return first_bytes(served, min(rate, batch_of(served)), tokens)
    spec, bare = load_spec(served.model), first_bytes(served, 0, 0)
    row = -(-tokens // _PAGE) * _PAGE * kv_bytes(spec) * spec.layers
    return bare + row * min(rate, int((PAGED * hbm_bytes - bare) / row))


def idle_percent(served: Served, rate: int) -> dict[str, Any]:
    """Return the idle percentages of a server's memory and operations at a rate, and their mean."""
    gpu = load_node(NODE).platforms[0].gpu
    done = 2 * param_count(load_spec(served.model)) * rate * ANSWER_TOKENS
    compute = 100.0 * (1.0 - done / (drained(served, rate).makespan_s * gpu.bf16_tflops * 1e12))
    memory = 100.0 * (1.0 - bytes_used(served, rate, served.hbm_bytes) / served.hbm_bytes)
    return {"memory": memory, "compute": compute, "mean": (memory + compute) / 2}
