"""vLLM's first scheduler: prompts before decodes, whole, and preemption by recomputation.

Source: vLLM before 0.8, `core/scheduler.py`.
"""

from __future__ import annotations

from typing import Annotated, NamedTuple

from c2c.policies import fill, joins
from c2c.ranges import Count, In
from c2c.serving.batches.scheduling import (
    compute_prompts,
    could_join,
    extend,
    is_short,
    join_head,
    preempt,
)
from c2c.serving.tables.state import Loop

__all__ = ["VllmV0"]


class VllmV0(NamedTuple):
    """Prompts first, whole; decodes wait.

    Attributes:
      max_tokens: prompt tokens of a step (`max_num_batched_tokens`); a longer prompt has its own.
      spare_tokens: KV tokens left free by a joining prompt (`watermark`).
    """

    max_tokens: Count = 2048
    spare_tokens: Annotated[int, In("[0, inf)")] = 64


@joins.by(VllmV0)
def _joins(policy: VllmV0, w: Loop, i: int) -> bool:
    return could_join(w, i, policy.spare_tokens)


@fill.by(VllmV0)
def _fill(policy: VllmV0, w: Loop, i: int, now_s: float) -> int:
    inst = w.s.instance[i]
    tokens = compute_prompts(w, i, 1 << 60)  # the rest of one that is longer than a step can be
    while inst.n_wait > 0:
        prompt = w.s.request[inst.wait_head].prompt
        if tokens > 0 and tokens + prompt > policy.max_tokens:
            break
        if not join_head(w, i, policy.spare_tokens, now_s):
            break
        tokens = compute_prompts(w, i, 1 << 60)
    plan = w.s.plan[inst.on_device]
    plan.decodes = 0
    if tokens > 0:
        return 1
    while is_short(w, i, now_s):
        preempt(w, i, inst.n_decode - 1)
    steps = extend(w, i, now_s)
    plan.decodes = inst.n_decode
    return steps
