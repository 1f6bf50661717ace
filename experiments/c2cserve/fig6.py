"""Interference of two slices on the link: solo sum against co-run (C2CServe, Fig. 6)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from c2c.cost import StepTable, load_constants, max_min, step_table, step_time
from c2c.hardware import link_gbps, slices
from c2c.models import ModelSpec, from_hf_config, load_spec, weight_bytes
from experiments.c2cserve.settings import gh200_of_the_paper
from experiments.claims import Result, answer, claim
from experiments.figure import Computed, Context, figure

__all__ = ["compute"]

LAYOUT = "2x48gb"
DECODES = 16  # sequences in a decode step; the paper states no batch
DECODE_CONTEXT = 512
PROMPT = 8192  # "full" chunk; the paper states no prompt length
CHUNKS = (512, 1024, 2048, 4096, 8192)
# Llama-3.2 1B, from its public config: two of them are the 5 GB of Fig. 6(a).
LLAMA_1B = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "num_hidden_layers": 16,
    "head_dim": 64,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
}
# No two Llama 3 have 44 GB: this one has more of the 8B's layers.
DEEP_LAYERS = 46


@figure("fig6", title="Fig. 6: interference on the link", draw="workload.draw_fig6")
def compute(context: Context) -> Computed:
    """Return throughput solo and co-run, over the pair's size and over the chunk size."""
    gh200, constants = gh200_of_the_paper(), load_constants()
    shared = link_gbps(gh200.link, context.link_variant)
    slice_ = slices(gh200, LAYOUT)[0]
    eight, three = load_spec("llama-3-8b"), load_spec("llama-3-3b")
    one = from_hf_config(LLAMA_1B, "llama-3-1b")
    deep = replace(eight, name="llama-3-8b-deep", layers=DEEP_LAYERS)
    pairs = ((one, one), (one, three), (three, three), (three, eight), (eight, eight), (deep, deep))

    def table(spec: ModelSpec, tokens: int) -> StepTable:
        return step_table(spec, slice_, constants, shared, max_tokens=tokens, max_rows=DECODES)

    by_size: list[dict[str, Any]] = []
    specs = {spec.name: spec for pair in pairs for spec in pair}
    tables = {name: table(spec, CHUNKS[0]) for name, spec in specs.items()}
    for first, second in pairs:
        both = [tables[s.name] for s in (first, second)]
        loads = {
            "decode": [_decode(t) for t in both],
            "prefill": [_prefill(t, CHUNKS[0], "tuned") for t in both],
        }
        by_size += [
            {
                "phase": phase,
                "pair": f"{first.name} + {second.name}",
                "size_gb": (weight_bytes(first) + weight_bytes(second)) / 1e9,
                **_shared(load, shared),
            }
            for phase, load in loads.items()
        ]
    big = table(eight, PROMPT)
    by_chunk = [
        {"chunk_tokens": chunk, "alpha": mode, **_shared([_prefill(big, chunk, mode)] * 2, shared)}
        for mode in ("tuned", "asym", "sym")
        for chunk in CHUNKS
    ]
    prefill = [r["gap_percent"] for r in by_size if r["phase"] == "prefill"]
    tuned = [r["gap_percent"] for r in by_chunk if r["alpha"] == "tuned"]
    printed = float(claim("c2cserve.fig6b.gap_chunk512").value)
    caption = (
        "(a) Tokens per second of two models that share the link, beside the sum of their solo "
        "runs. (b) How much of that sum is lost (gap), over the chunk size; "
        f"{context.link_text(shared)}."
    )
    assumptions = [
        f"Both models run on one GH200 cut into {LAYOUT} and share the link max-min fairly.",
        f"(a) Each model runs decode steps of {DECODES} sequences.",
        f"(a) The last pair is Llama-3 8B with {DEEP_LAYERS} layers, as no two Llama 3 make 44 GB.",
        f"(b) Two Llama-3 8B prefill prompts of {PROMPT} tokens.",
        "(b) Tuned: each chunk size runs at the alpha that is best without a neighbour.",
        "The paper states neither phase, batch, layout nor prompt length.",
        f"With prefill at chunk {CHUNKS[0]}, the first and last gap of (a) would be "
        f"{prefill[0]:.0f}% and {prefill[-1]:.0f}%.",
    ]
    if tuned[0] > 2 * printed:
        assumptions.append(
            f"(b) The link still limits our model at chunk {CHUNKS[0]}, hence a gap of "
            f"{tuned[0]:.0f}% where the paper prints {printed:g}%."
        )
    return Computed(
        tables={"size": pa.Table.from_pylist(by_size), "chunk": pa.Table.from_pylist(by_chunk)},
        results=_results(by_size, by_chunk, context.link_variant, shared),
        caption=caption,
        assumptions=tuple(assumptions),
    )


def _decode(table: StepTable) -> tuple[float, float, float]:
    """Return (seconds alone, link bytes, tokens) of a decode step at the best alpha."""
    costs = [
        step_time(
            table,
            decode_seqs=DECODES,
            decode_kv_tokens=DECODES * DECODE_CONTEXT,
            head_rows=DECODES,
            alpha_index=a,
        )
        for a in range(len(table.alphas))
    ]
    best = min(costs, key=lambda c: c.alone_s)
    return best.alone_s, best.link_bytes, DECODES


def _prefill(table: StepTable, chunk: int, mode: str) -> tuple[float, float, float]:
    """Return (seconds alone, link bytes, tokens) of a whole prompt in chunks."""

    def run(alpha_index: int) -> tuple[float, float]:
        steps = [
            step_time(
                table,
                prefill_tokens=chunk,
                context_tokens=at,
                head_rows=int(at + chunk == PROMPT),
                alpha_index=alpha_index,
            )
            for at in range(0, PROMPT, chunk)
        ]
        return sum(s.alone_s for s in steps), sum(s.link_bytes for s in steps)

    last = len(table.alphas) - 1
    choices = {"asym": [0], "sym": [last]}.get(mode, range(last + 1))
    seconds, link = min(run(a) for a in choices)
    return seconds, link, PROMPT


def _shared(loads: Sequence[tuple[float, float, float]], capacity_gbps: float) -> dict[str, Any]:
    """Return solo sum and co-run throughput (tokens/s) of loads that repeat forever."""
    alone, link, tokens = (np.array(v) for v in zip(*loads, strict=True))
    rates = max_min(link / alone / 1e9, capacity_gbps)
    together = np.maximum(alone, link / (rates * 1e9))
    solo, corun = float((tokens / alone).sum()), float((tokens / together).sum())
    return {
        "solo_tokens_per_s": solo,
        "corun_tokens_per_s": corun,
        "gap_percent": 100.0 * (1.0 - corun / solo),
        "demand_gbps": float((link / alone / 1e9).sum()),
    }


def _needs(name: str, ours: Mapping[str, Any], capacity_gbps: float) -> str:
    """Return a note: the draw of two equal loads that gives the printed gap, by the link alone."""
    printed = float(claim(f"c2cserve.fig6{name}").value)
    each = capacity_gbps / (1.0 - printed / 100.0) / 2.0
    return (
        f"A gap of {printed:g}% for two loads on {capacity_gbps:g} GB/s means that each draws "
        f"{each:.0f} GB/s alone; ours draw {ours['demand_gbps'] / 2.0:.0f}."
    )


def _results(
    by_size: list[dict[str, Any]],
    by_chunk: list[dict[str, Any]],
    variant: str,
    capacity_gbps: float,
) -> tuple[Result, ...]:
    tuned = [r for r in by_chunk if r["alpha"] == "tuned"]
    shown, other = ([r for r in by_size if r["phase"] == phase] for phase in ("decode", "prefill"))

    def result(claim_id: str, ours: Any, note: str, *, chosen: bool = False) -> Result:
        return answer(
            f"c2cserve.fig6{claim_id}",
            ours,
            note,
            sample="in-sample" if chosen else "out-of-sample",
            link_variant=variant,
        )

    def series(rows: list[dict[str, Any]]) -> dict[str, list[float]]:
        return {
            "solo": [r["solo_tokens_per_s"] for r in rows],
            "corun": [r["corun_tokens_per_s"] for r in rows],
            "gap": [r["gap_percent"] for r in rows],
        }

    decode = (
        f"Decode steps of {DECODES}, {LAYOUT}: phase, batch and layout are our reading, taken "
        f"with the printed gaps in view, hence in-sample. Prefilling at chunk {CHUNKS[0]} the gaps "
        "are "
        f"{other[0]['gap_percent']:.0f}% and {other[-1]['gap_percent']:.0f}%."
    )
    chunk = f"Two Llama-3 8B, {LAYOUT}, prompt {PROMPT}, alpha tuned alone; pair and layout ours."
    sizes = [r["size_gb"] for r in shown]
    return (
        result("a.gap_small", shown[0]["gap_percent"], decode, chosen=True),
        result("a.gap_large", shown[-1]["gap_percent"], decode, chosen=True),
        result(
            "a.footprint_range",
            [min(sizes), max(sizes)],
            "The smallest and the largest pair were chosen for these sizes.",
            chosen=True,
        ),
        result("a.throughput_falls", series(shown), decode),
        result(
            "b.gap_chunk512",
            tuned[0]["gap_percent"],
            f"{chunk} {_needs('b.gap_chunk512', tuned[0], capacity_gbps)}",
        ),
        result(
            "b.gap_full_chunk",
            tuned[-1]["gap_percent"],
            f"{chunk} {_needs('b.gap_full_chunk', tuned[-1], capacity_gbps)}",
        ),
        result("b.throughput_trend", series(tuned), chunk),
    )
