"""Interference of two slices on the link: solo sum against co-run (C2CServe, Fig. 6)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from c2c.cost import StepTable, load_constants, max_min, step_table, step_time
from c2c.hardware import link_gbps, slices
from c2c.models import ModelSpec, from_hf_config, load_spec, weight_bytes
from c2c.ranges import Count
from experiments.claims import Result, answer, claim
from experiments.figure import Computed, Context, figure
from experiments.papers.c2cserve.settings import Chip

__all__ = ["compute"]

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Deep:
    """A model with more of another's layers."""

    spec: str
    layers: Count


@dataclass(frozen=True, slots=True, kw_only=True)
class Pairs:
    """Experiment: pairs of models on two slices."""

    chip: Chip
    layout: str
    pairs: tuple[tuple[str, str], ...]
    deep: Deep
    decodes: Count
    decode_context: Count
    chunks: tuple[Count, ...]
    chunk_model: str

    @property
    def prompt(self) -> int:
        """Tokens of a prompt: the largest chunk."""
        return max(self.chunks)

    def spec(self, name: str) -> ModelSpec:
        """Return a spec by its name, "deep" or file."""
        if name == "deep":
            model = self.deep
            return replace(load_spec(model.spec), name=f"{model.spec}-deep", layers=model.layers)
        if name == "llama-3-1b":
            return from_hf_config(LLAMA_1B, name)
        return load_spec(name)


@figure("fig6", title="Fig. 6: interference on the link", experiment=Pairs,
        draw=".drawing.workload.draw_fig6")  # fmt: skip
def compute(context: Context, experiment: Pairs) -> Computed:
    """Return throughput solo and co-run, over pair size and chunk size."""
    chip, constants = experiment.chip.platform, load_constants()
    shared = link_gbps(chip.link, context.link_variant)
    slice_ = slices(chip, experiment.layout)[0]
    first_chunk, decodes = experiment.chunks[0], experiment.decodes
    pairs = [tuple(map(experiment.spec, pair)) for pair in experiment.pairs]

    def table(spec: ModelSpec, tokens: int) -> StepTable:
        return step_table(spec, slice_, constants, shared, max_tokens=tokens, max_rows=decodes)

    by_size: list[dict[str, Any]] = []
    specs = {spec.name: spec for pair in pairs for spec in pair}
    tables = {name: table(spec, first_chunk) for name, spec in specs.items()}
    for first, second in pairs:
        both = [tables[s.name] for s in (first, second)]
        loads = {
            "decode": [_decode(t, experiment) for t in both],
            "prefill": [_prefill(t, first_chunk, "tuned", experiment.prompt) for t in both],
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
    big = table(experiment.spec(experiment.chunk_model), experiment.prompt)
    by_chunk = [
        {
            "chunk_tokens": chunk,
            "alpha": mode,
            **_shared([_prefill(big, chunk, mode, experiment.prompt)] * 2, shared),
        }
        for mode in ("tuned", "asym", "sym")
        for chunk in experiment.chunks
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
        f"Both models run on one GH200 cut into {experiment.layout} and share the link "
        "max-min fairly.",
        f"(a) Each model runs decode steps of {decodes} sequences.",
        f"(a) 'deep' is {experiment.deep.spec} with {experiment.deep.layers} layers, as no two "
        "Llama 3 make 44 GB.",
        f"(b) Two {experiment.chunk_model} prefill prompts of {experiment.prompt} tokens.",
        "(b) Tuned: each chunk size runs at the alpha that is best without a neighbour.",
        "The paper states neither phase, batch, layout nor prompt length.",
        f"With prefill at chunk {first_chunk}, the first and last gap of (a) would be "
        f"{prefill[0]:.0f}% and {prefill[-1]:.0f}%.",
    ]
    if tuned[0] > 2 * printed:
        assumptions.append(
            f"(b) The link still limits our model at chunk {first_chunk}, hence a gap of "
            f"{tuned[0]:.0f}% where the paper prints {printed:g}%."
        )
    return Computed(
        tables={"size": pa.Table.from_pylist(by_size), "chunk": pa.Table.from_pylist(by_chunk)},
        results=_results(by_size, by_chunk, context.link_variant, shared, experiment),
        caption=caption,
        finding=_finding(by_size, tuned),
        assumptions=tuple(assumptions),
    )


def _finding(by_size: Sequence[Mapping[str, Any]], tuned: Sequence[float]) -> str:
    first, *_, last = (r for r in by_size if r["phase"] == "decode")
    return (
        f"Two models that share the link lose {first['gap_percent']:.0f}% of their solo decode "
        f"rate at {first['size_gb']:.0f} GB and {last['gap_percent']:.0f}% at "
        f"{last['size_gb']:.0f} GB; prefill loses {tuned[0]:.0f}% in small chunks, "
        f"{tuned[-1]:.0f}% in one"
    )


def _decode(table: StepTable, experiment: Pairs) -> tuple[float, float, float]:
    """Return (seconds alone, link bytes, tokens) of a decode at the best alpha."""
    costs = [
        step_time(
            table,
            decode_seqs=experiment.decodes,
            decode_kv_tokens=experiment.decodes * experiment.decode_context,
            head_rows=experiment.decodes,
            alpha_index=a,
        )
        for a in range(len(table.alphas))
    ]
    best = min(costs, key=lambda c: c.alone_s)
    return best.alone_s, best.link_bytes, experiment.decodes


def _prefill(table: StepTable, chunk: int, mode: str, prompt: int) -> tuple[float, float, float]:
    """Return (seconds alone, link bytes, tokens) of a prompt in chunks."""

    def run(alpha_index: int) -> tuple[float, float]:
        steps = [
            step_time(
                table,
                prefill_tokens=chunk,
                context_tokens=offset,
                head_rows=int(offset + chunk == prompt),
                alpha_index=alpha_index,
            )
            for offset in range(0, prompt, chunk)
        ]
        return sum(s.alone_s for s in steps), sum(s.link_bytes for s in steps)

    last = len(table.alphas) - 1
    choices = {"asym": [0], "sym": [last]}.get(mode, range(last + 1))
    seconds, link = min(run(a) for a in choices)
    return seconds, link, prompt


def _shared(loads: Sequence[tuple[float, float, float]], capacity_gbps: float) -> dict[str, Any]:
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
    printed = float(claim(f"c2cserve.fig6{name}").value)
    alone_gbps = capacity_gbps / (1.0 - printed / 100.0) / 2.0
    return (
        f"A gap of {printed:g}% for two loads on {capacity_gbps:g} GB/s means that each draws "
        f"{alone_gbps:.0f} GB/s alone; ours draw {ours['demand_gbps'] / 2.0:.0f}."
    )


def _results(
    by_size: list[dict[str, Any]],
    by_chunk: list[dict[str, Any]],
    variant: str,
    capacity_gbps: float,
    experiment: Pairs,
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
        f"Decode steps of {experiment.decodes}, {experiment.layout}: phase, batch and layout are "
        "our reading, taken with the printed gaps in view, hence in-sample. Prefilling at chunk "
        f"{experiment.chunks[0]} the gaps are {other[0]['gap_percent']:.0f}% and "
        f"{other[-1]['gap_percent']:.0f}%."
    )
    chunk = (
        f"Two {experiment.chunk_model}, {experiment.layout}, prompt {experiment.prompt}, alpha "
        "tuned alone; pair and layout ours."
    )
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
