"""Steps of a budget of tokens."""

from __future__ import annotations

from typing import NamedTuple

from c2c.policies import fill, jitable, joins
from c2c.ranges import Count
from c2c.serving.batches.scheduling import (
    compute_prompts,
    could_join,
    extend,
    is_short,
    join_head,
    preempt,
)
from c2c.serving.tables.state import Loop

__all__ = ["Sarathi", "VllmV1"]


class VllmV1(NamedTuple):
    """vLLM V1: a decode counts as a token of the budget.

    Source: vLLM 0.8 and later, `v1/core/sched/scheduler.py`.
    """

    max_tokens: Count = 8192


class Sarathi(NamedTuple):
    """Sarathi-Serve: stall-free batches with chunks of prompts."""

    chunk: Count = 512


# KV caches are taken as answers grow; without room the newest decode starts over.
@jitable
def _fill_budget(w: Loop, i: int, budget: int, now_s: float) -> int:
    inst = w.s.instance[i]
    is_full = False
    while is_short(w, i, now_s):
        preempt(w, i, inst.n_decode - 1)
        is_full = True
    prompt_budget = max(0, budget - inst.n_decode)
    tokens = compute_prompts(w, i, prompt_budget)
    while not is_full and tokens < prompt_budget and join_head(w, i, inst.n_decode, now_s):
        before, tokens = tokens, compute_prompts(w, i, prompt_budget)
        if tokens == before:
            break  # the cost tables end here
    w.s.plan[inst.on_device].decodes = inst.n_decode
    return extend(w, i, now_s)


@joins.by(VllmV1)
@joins.by(Sarathi)
def _joins(policy: VllmV1 | Sarathi, w: Loop, i: int) -> bool:
    return could_join(w, i, w.s.instance[i].n_decode)


@fill.by(VllmV1)
def _fill_v1(policy: VllmV1, w: Loop, i: int, now_s: float) -> int:
    return _fill_budget(w, i, policy.max_tokens, now_s)


@fill.by(Sarathi)
def _fill_sarathi(policy: Sarathi, w: Loop, i: int, now_s: float) -> int:
    return _fill_budget(w, i, policy.chunk, now_s)
