"""SGLang's scheduler: prompts in steps of their own."""

from __future__ import annotations

from typing import Annotated, NamedTuple

from c2c.policies import fill, jitable, joins
from c2c.ranges import Count, In
from c2c.serving.batches.scheduling import (
    compute_prompts,
    could_join,
    extend,
    is_short,
    join_head,
    preempt,
)
from c2c.serving.tables.batch import generated, tokens_left
from c2c.serving.tables.state import SLOT, Loop

__all__ = ["SGLang"]


class SGLang(NamedTuple):
    """Prompts first, in chunks; a decode that has made least starts over if there is no room.

    Source: SGLang 0.4 and later, `managers/schedule_policy.py` and `schedule_batch.py`. Ours:
    `new_token_ratio` is constant.

    Attributes:
      chunk: prompt tokens of a step (`chunked_prefill_size`).
      new_token_ratio: share of a decode's remaining answer with room.
      clip_tokens: most answer tokens with room for a joining prompt.
    """

    chunk: Count = 8192
    new_token_ratio: Annotated[float, In("[0, 1]")] = 0.4
    clip_tokens: Count = 4096


@jitable
def _spare(policy: SGLang, w: Loop, i: int) -> int:
    # Tokens of KV cache that stay free for the answers of the batch and of the request that joins.
    inst = w.s.instance[i]
    expected = 0.0
    for k in range(inst.n_decode):
        expected += policy.new_token_ratio * min(tokens_left(w.s, i, k), policy.clip_tokens)
    for k in range(inst.n_prefill):
        output = w.s.request[w.s.prefilling[i, k]].output
        expected += policy.new_token_ratio * min(output, policy.clip_tokens)
    if inst.n_wait > 0:
        expected += min(w.s.request[inst.wait_head].output, policy.clip_tokens)
    return int(expected)


@jitable
def _least_made(w: Loop, i: int) -> int:
    # The decode with fewest tokens; of equals that with the longest prompt.
    best = 0
    for k in range(1, w.s.instance[i].n_decode):
        tokens, least = generated(w.s, i, k), generated(w.s, i, best)
        prompt = w.s.request[w.s.decoding[i, k, SLOT]].prompt
        longest = w.s.request[w.s.decoding[i, best, SLOT]].prompt
        if tokens < least or (tokens == least and prompt > longest):
            best = k
    return best


@joins.by(SGLang)
def _joins(policy: SGLang, w: Loop, i: int) -> bool:
    return could_join(w, i, _spare(policy, w, i))


@fill.by(SGLang)
def _fill(policy: SGLang, w: Loop, i: int, now_s: float) -> int:
    inst = w.s.instance[i]
    tokens = compute_prompts(w, i, policy.chunk)
    while tokens < policy.chunk and join_head(w, i, _spare(policy, w, i), now_s):
        before, tokens = tokens, compute_prompts(w, i, policy.chunk)
        if tokens == before:
            break  # the cost tables end here
    plan = w.s.plan[inst.on_device]
    plan.decodes = 0
    if tokens > 0:
        return 1
    while is_short(w, i, now_s):
        preempt(w, i, _least_made(w, i))
    steps = extend(w, i, now_s)
    plan.decodes = inst.n_decode
    return steps
