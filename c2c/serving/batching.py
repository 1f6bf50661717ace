"""Continuous batching with chunked prefill: what the next step of an instance computes."""

from __future__ import annotations

from typing import Final

from numba.extending import register_jitable

from c2c.cost import attention_pairs, chunk_kv_tokens, decode_kv_tokens
from c2c.policies import alpha_index, best_alpha_index, may_join, prefill_share
from c2c.policies.alpha import ROOFLINE
from c2c.serving.costs import step_alone_s, step_bytes
from c2c.serving.queues import pop_waiting
from c2c.serving.state import IDLE, RUNNING, Fleet, Rules, Serving

__all__ = ["ACT_INTERRUPT", "ACT_LOAD", "ACT_RUN", "compose", "emit", "next_part"]

# Action codes; the second number is the instance, whose `plan_*` fields say the rest.
ACT_LOAD: Final = 0
ACT_RUN: Final = 1
ACT_INTERRUPT: Final = 2  # end the decode run at the next step boundary


@register_jitable
def emit(s: Serving, code: int, i: int) -> None:
    """Append an action for the backend."""
    n = s.count[0].actions
    s.actions[n, 0] = code
    s.actions[n, 1] = i
    s.count[0].actions = n + 1


@register_jitable
def _admit(fleet: Fleet, s: Serving, i: int, now_s: float) -> None:
    inst = s.instance[i]
    while inst.n_wait > 0:
        head = s.request[inst.wait_head]
        tokens = head.prompt + head.output
        batch = inst.n_prefill + inst.n_decode
        if not may_join(inst.kv_used, inst.kv_capacity, tokens, batch, fleet.max_batch):
            return
        slot = pop_waiting(s, i)
        inst.kv_used += tokens
        s.request[slot].admitted_s = now_s
        s.prefilling[i, inst.n_prefill] = slot
        inst.n_prefill += 1


@register_jitable
def _plan_prefill(fleet: Fleet, s: Serving, i: int, pair: int, now_s: float) -> None:
    inst = s.instance[i]
    window = fleet.costs.window[pair]
    budget = fleet.chunk[fleet.deployment[inst.model].arch, inst.kind]
    inst.plan_prefill = 0
    inst.plan_prefills = 0
    inst.plan_pairs = 0.0
    inst.plan_prefill_kv = 0
    inst.plan_rows = 0
    prompts = 0
    for k in range(inst.n_prefill):
        req = s.request[s.prefilling[i, k]]
        share = prefill_share(budget - inst.plan_prefill, req.prompt - req.prefilled)
        req.step_tokens = share
        if share <= 0:
            continue
        if req.prefilled == 0:
            req.started_s = now_s
            req.from_steps = inst.sum_steps
            req.from_alpha = inst.sum_alpha
            req.from_link = inst.sum_link
            req.from_hbm = inst.sum_hbm
        inst.plan_prefill += share
        inst.plan_prefills += 1
        inst.plan_pairs += attention_pairs(req.prefilled, share, window)
        inst.plan_prefill_kv += chunk_kv_tokens(req.prefilled, share, window)
        inst.plan_rows += 1 if req.prefilled + share == req.prompt else 0
        prompts += req.prompt
    if prompts > 0:
        # A prefill step's part of the TTFT target is its part of the prompts in it.
        inst.plan_slo_s = (
            fleet.deployment[inst.model].ttft_slo_s * float(inst.plan_prefill) / float(prompts)
        )
    else:
        inst.plan_slo_s = fleet.deployment[inst.model].tpot_slo_s


@register_jitable
def _plan_decode(fleet: Fleet, s: Serving, i: int, pair: int) -> None:
    inst = s.instance[i]
    window = fleet.costs.window[pair]
    inst.plan_decodes = inst.n_decode
    inst.plan_rows += inst.n_decode
    inst.plan_decode_kv = 0
    inst.plan_growth = 0
    steps = 1 << 60
    for k in range(inst.n_decode):
        req = s.request[s.decoding[i, k]]
        left = req.target - inst.decode_clock
        length = req.prompt + req.output - left
        inst.plan_decode_kv += decode_kv_tokens(length, window)
        steps = min(steps, left)
        if window <= 0:
            inst.plan_growth += 1
        elif length < window:
            inst.plan_growth += 1
            steps = min(steps, window - length)
    # A step with prompt tokens in it is followed by a different one.
    inst.plan_steps = 1 if inst.plan_prefill > 0 else steps


@register_jitable
def _plan_alpha(fleet: Fleet, rules: Rules, s: Serving, i: int, pair: int) -> None:
    inst = s.instance[i]
    variants = len(s.alone_s)
    if rules.alpha.policy == ROOFLINE:
        for a in range(variants):
            s.alone_s[a] = step_alone_s(fleet.costs, pair, inst, a)
            s.link_bytes[a] = step_bytes(fleet.costs, pair, inst, a)[0]
        inst.plan_alpha = best_alpha_index(s.alone_s, s.link_bytes, inst.available_gbps)
        inst.alpha = inst.plan_alpha / max(1, variants - 1)
    else:
        inst.plan_alpha = alpha_index(inst.alpha, variants)


@register_jitable
def compose(fleet: Fleet, rules: Rules, s: Serving, i: int, now_s: float) -> bool:
    """Admit waiting requests and start the next step of instance `i`; False if it has no work.

    A step holds up to one chunk of prompt tokens, first come first, and one token of every
    decoding sequence. Without prompt tokens it stands for a run of equal decode steps, up to the
    first sequence that ends; the backend may be told to stop earlier.
    """
    inst = s.instance[i]
    if inst.draining == 0:
        _admit(fleet, s, i, now_s)
    pair = fleet.deployment[inst.model].arch * fleet.costs.kinds + inst.kind
    _plan_prefill(fleet, s, i, pair, now_s)
    _plan_decode(fleet, s, i, pair)
    inst.last_used_s = now_s
    if inst.plan_prefill + inst.plan_decodes == 0:
        inst.state = IDLE
        return False
    inst.plan_part = 0
    inst.plan_parts = 1
    if inst.plan_prefill > 0:
        inst.plan_parts = fleet.parts[fleet.deployment[inst.model].arch]
    _plan_alpha(fleet, rules, s, i, pair)
    inst.state = RUNNING
    emit(s, ACT_RUN, i)
    return True


@register_jitable
def next_part(fleet: Fleet, rules: Rules, s: Serving, i: int) -> bool:
    """Go on to the next part of the step of instance `i`; False if it was the last."""
    inst = s.instance[i]
    if inst.plan_part + 1 >= inst.plan_parts:
        return False
    inst.plan_part += 1
    _plan_alpha(
        fleet, rules, s, i, fleet.deployment[inst.model].arch * fleet.costs.kinds + inst.kind
    )
    emit(s, ACT_RUN, i)
    return True
