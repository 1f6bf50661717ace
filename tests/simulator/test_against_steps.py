"""The fast-forwarding simulator against one that takes every step, on a slice alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest

from c2c.cost import attention_pairs, chunk_kv_tokens, decode_kv_tokens
from c2c.policies import Fixed, Static
from c2c.serving import Prepared, prepare
from c2c.workloads import RequestBlock
from tests.simulator.worlds import random_requests, setup, simulate


@dataclass
class Job:
    at_s: float
    prompt: int
    output: int
    prefilled: int = 0
    made: int = 0  # output tokens
    first_s: float = np.nan
    done_s: float = np.nan


def step_s(
    prepared: Prepared, prefills: Sequence[tuple[int, int]], kv: int, n: int, rows: int
) -> float:
    """Seconds of one step from the tables; `prefills` are (offset, tokens)."""
    t = prepared.tables[0][0]
    tokens = sum(c for _, c in prefills)
    pairs = sum(attention_pairs(p, c, t.sliding_window) for p, c in prefills)
    keys = sum(chunk_kv_tokens(p, c, t.sliding_window) for p, c in prefills)
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
    chunk, window = 256, prepared.tables[0][0].sliding_window
    waiting, batch = list(jobs), []
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
        kv = sum(decode_kv_tokens(j.prompt + j.made, window) for j in decodes)
        parts = [(j.prefilled, c) for j, c in prefills]
        now += step_s(prepared, parts, kv, len(decodes), rows + len(decodes))
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


@pytest.mark.parametrize("window", [0, 150])
@pytest.mark.parametrize("rate", [0.3, 3.0, 100.0])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_same_times_as_single_steps(window: int, rate: float, seed: int) -> None:
    what = setup("llama-3-8b", mig="3x24gb", max_batch=6, chunk=Fixed(tokens=256), alpha=Static())
    one = what.deployments[0]
    what = replace(what, deployments=(replace(one, spec=replace(one.spec, sliding_window=window)),))
    prepared = prepare(what)
    block = random_requests(40, 1, rate, seed)
    records, _, _ = simulate(prepared, block)
    jobs = by_single_steps(prepared, block)
    np.testing.assert_allclose(records.first_token_s, [j.first_s for j in jobs], rtol=1e-9)
    np.testing.assert_allclose(records.finished_s, [j.done_s for j in jobs], rtol=1e-9)
