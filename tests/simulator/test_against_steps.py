"""The fast-forwarding simulator against one that takes every step, on a slice alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from c2c.cost import attention_pairs, chunk_kv_tokens, decode_kv_tokens
from c2c.models import ModelSpec
from c2c.policies import Fixed, Static
from c2c.serving import Prepared, prepare
from c2c.workloads import RequestBlock
from tests.simulator.worlds import random_requests, setup, simulate
from tests.tiers import tiered


@dataclass
class Job:
    at_s: float
    prompt: int
    output: int
    prefilled: int = 0
    made: int = 0  # output tokens
    first_s: float = np.nan
    done_s: float = np.nan


def windows(spec: ModelSpec) -> list[int]:
    """Return the window of each layer, 0: none."""
    every = range(spec.layers) if spec.sliding_window else spec.window_layers
    size = spec.sliding_window or spec.partial_window
    return [size if n in every else 0 for n in range(spec.layers)]


def step_s(
    prepared: Prepared, prefills: Sequence[tuple[int, int]], lengths: Sequence[int], rows: int
) -> float:
    """Seconds of one step from the tables, layer by layer; `prefills` are (offset, tokens)."""
    t, layers = prepared.tables[0][0], windows(prepared.architectures[0])
    tokens, n = sum(c for _, c in prefills), len(lengths)
    pairs = sum(attention_pairs(p, c, w) for p, c in prefills for w in layers) / len(layers)
    keys = sum(chunk_kv_tokens(p, c, w) for p, c in prefills for w in layers) / len(layers)
    kv = sum(decode_kv_tokens(length, w) for length in lengths for w in layers) / len(layers)
    return float(
        t.body_s[tokens + n, 0]
        + t.head_s[rows, 0]
        + t.step_overhead_s
        + t.kv_read_s_per_token * kv
        + max(t.attn_s_per_pair * pairs, t.kv_read_s_per_token * keys)
        + t.prefill_attention_s[tokens]
        + t.decode_attention_s[n]
    )


def by_single_steps(prepared: Prepared, block: RequestBlock) -> list[Job]:
    """Serve with one step at a time; a request joins at the first boundary after its arrival."""
    jobs = [
        Job(float(a), int(p), int(o))
        for a, p, o in zip(block.arrival_s, block.prompt_tokens, block.output_tokens, strict=True)
    ]
    now = jobs[0].at_s + prepared.setup.constants.switch_dense_s
    chunk, waiting, batch = 256, list(jobs), []
    while waiting or batch:
        if not batch:
            now = max(now, waiting[0].at_s)
        while waiting and waiting[0].at_s <= now and len(batch) < prepared.fleet.max_batch:
            batch.append(waiting.pop(0))
        budget, prefills, rows = chunk, [], 0
        for job in (j for j in batch if j.prefilled < j.prompt):
            tokens = min(budget, job.prompt - job.prefilled)
            if tokens:
                prefills.append((job, tokens))
                budget -= tokens
                rows += job.prefilled + tokens == job.prompt
        decodes = [j for j in batch if j.prefilled == j.prompt]
        lengths = [j.prompt + j.made for j in decodes]
        parts = [(j.prefilled, c) for j, c in prefills]
        now += step_s(prepared, parts, lengths, rows + len(decodes))
        for job, tokens in prefills:
            job.prefilled += tokens
            if job.prefilled == job.prompt:
                job.first_s, job.made = now, 1
        for job in decodes:
            job.made += 1
        for job in [j for j in batch if j.made == j.output]:
            job.done_s = now
            batch.remove(job)
    return jobs


SOME = tuple(range(0, 32, 3))


@pytest.mark.parametrize(
    "window",
    [
        {},
        {"sliding_window": 150},
        {"partial_window": 150, "partial_window_layers": len(SOME), "window_layers": SOME},
    ],
)
@pytest.mark.parametrize("rate", [0.3, 3.0, 100.0])
@pytest.mark.parametrize("seed", tiered([1, 2, 3]))
def test_same_times_as_single_steps(window: dict[str, Any], rate: float, seed: int) -> None:
    what = setup("llama-3-8b", mig="3x24gb", max_batch=6, chunk=Fixed(tokens=256), alpha=Static())
    one = what.deployments[0]
    what = replace(what, deployments=(replace(one, spec=replace(one.spec, **window)),))
    prepared = prepare(what)
    block = random_requests(40, 1, rate, seed)
    records, _, _ = simulate(prepared, block)
    jobs = by_single_steps(prepared, block)
    np.testing.assert_allclose(records.first_token_s, [j.first_s for j in jobs], rtol=1e-9)
    np.testing.assert_allclose(records.finished_s, [j.done_s for j in jobs], rtol=1e-9)
