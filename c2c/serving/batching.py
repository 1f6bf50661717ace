"""Continuous batching with chunked prefill: composition of an instance's next step."""

from __future__ import annotations

import math

from c2c.cost import cache_pairs, chunk_places
from c2c.policies import (
    alpha_index,
    best_alpha_index,
    chunk_tokens,
    inlined,
    jitable,
    layers_to_keep,
    link_price,
    may_join,
    prefill_share,
)
from c2c.serving.actions import ACT_RUN, emit
from c2c.serving.batch import batch_size, generated, kv_tokens, tokens_left
from c2c.serving.costs import shape_of, step_alone_s, step_bytes
from c2c.serving.handover import has_prompt_done, join_come, join_decodes
from c2c.serving.hbm import (
    drop_older,
    drop_weights,
    idle_weight_bytes,
    kept_bytes,
    left_of_stay_s,
    pair_of,
    place_bytes,
    quota_bytes,
    request_places,
    room_bytes,
)
from c2c.serving.instances import make_room_for
from c2c.serving.kv_homes import choose_home, count_step, take_home
from c2c.serving.kv_parking import bring_in
from c2c.serving.prefixes import claim_prefix, shared_places, trim_prefixes
from c2c.serving.queues import pop_waiting
from c2c.serving.state import RUNNING, Fleet, Rules, Serving
from c2c.serving.variants import vary_now

__all__ = ["compose"]


@jitable
def _is_closed(s: Serving, i: int) -> bool:
    # Whether a sequence of the batch has more than the token that its prompt gave.
    most = 0
    for k in range(s.instance[i].n_decode):
        most = max(most, generated(s, i, k))
    return most > 1


@inlined
def _admit(fleet: Fleet, rules: Rules, s: Serving, i: int, now_s: float) -> None:
    inst = s.instance[i]
    dev = s.device[inst.on_device]
    if fleet.hands_directly:
        join_come(fleet, rules, s, i)
    if not rules.traits.admit.joins_decodes and _is_closed(s, i):
        return
    while inst.n_wait > 0:
        if fleet.hands_directly and has_prompt_done(s, inst.wait_head):
            return  # its KV cache has not come
        head = s.request[inst.wait_head]
        places = request_places(fleet, s, i, head.prompt + head.output)
        need = place_bytes(fleet, s, i, places)
        batch = batch_size(s, i)
        is_done = has_prompt_done(s, inst.wait_head)
        if head.blocks > 0 and not is_done and need > room_bytes(s, inst.on_device):
            need -= place_bytes(fleet, s, i, shared_places(fleet, rules, s, i, inst.wait_head))
        if need > room_bytes(s, inst.on_device):
            make_room_for(fleet, rules, s, i, need, now_s)
        room = quota_bytes(fleet, rules, s, i, room_bytes(s, inst.on_device))
        if not may_join(rules.system.admit, need, room, batch, fleet.max_batch):
            return
        has_memories = len(fleet.kv.room_bytes) > 0
        home = choose_home(fleet, rules, s, i, inst.wait_head) if has_memories else 0
        if home < 0:
            return
        slot = pop_waiting(s, i)
        if s.request[slot].blocks > 0 and not is_done:
            places -= claim_prefix(fleet, rules, s, i, slot)
        inst.kv_used += places
        dev.kv_bytes += place_bytes(fleet, s, i, places)
        if is_done:
            join_decodes(fleet, rules, s, i, slot)
        else:
            s.request[slot].admitted_s = now_s
            s.prefilling[i, inst.n_prefill] = slot
            inst.n_prefill += 1
        if has_memories:
            take_home(fleet, rules, s, i, slot, home)


@inlined
def _plan_prefill(fleet: Fleet, s: Serving, i: int, pair: int, budget: int) -> None:
    inst = s.instance[i]
    plan = s.plan[inst.on_device]
    cache = shape_of(fleet.costs.reads, pair)
    plan.prefill = 0
    plan.prefills = 0
    plan.pairs = 0.0
    plan.prefill_kv = 0
    plan.rows = 0
    prompts = 0
    for k in range(inst.n_prefill):
        req = s.request[s.prefilling[i, k]]
        share = prefill_share(budget - plan.prefill, req.prompt - req.prefilled)
        req.step_tokens = share
        if share <= 0:
            continue
        plan.prefill += share
        plan.prefills += 1
        plan.pairs += cache_pairs(req.prefilled, share, cache)
        plan.prefill_kv += chunk_places(req.prefilled, share, cache)
        plan.rows += 1 if req.prefilled + share == req.prompt else 0
        prompts += req.prompt - req.reused
    if prompts > 0:
        # A prefill step's part of the TTFT target is its part of the prompts in it.
        plan.slo_s = fleet.deployment[inst.model].ttft_slo_s * float(plan.prefill) / float(prompts)
    else:
        plan.slo_s = fleet.deployment[inst.model].tpot_slo_s


@inlined
def _note_starts(s: Serving, i: int, now_s: float) -> None:
    # Of the prompts whose first tokens are in the step.
    inst = s.instance[i]
    for k in range(inst.n_prefill):
        req = s.request[s.prefilling[i, k]]
        if req.step_tokens <= 0 or req.prefilled > req.reused:
            continue
        req.started_s = now_s
        req.from_steps = inst.sum_steps
        req.from_alpha = inst.sum_alpha
        req.from_link = inst.sum_link
        req.from_hbm = inst.sum_hbm
        req.from_alone_s = 0.0
        if req.again > 0:
            req.from_steps -= req.was_steps
            req.from_alpha -= req.was_alpha
            req.from_link -= req.was_link
            req.from_hbm -= req.was_hbm
            req.from_alone_s -= req.was_alone_s


@inlined
def _plan_decode(fleet: Fleet, s: Serving, i: int, pair: int) -> None:
    inst = s.instance[i]
    plan = s.plan[inst.on_device]
    cache = shape_of(fleet.costs.reads, pair)
    plan.decodes = inst.n_decode if fleet.mixes or plan.prefill == 0 else 0
    plan.rows += plan.decodes
    steps, total = 1 << 60, 0
    for k in range(plan.decodes):
        total += kv_tokens(s, i, k)
        steps = min(steps, tokens_left(s, i, k))
    plan.decode_kv = cache.full * total
    plan.growth = cache.full * plan.decodes
    if cache.windowed > 0:
        for k in range(plan.decodes):
            length = kv_tokens(s, i, k)
            plan.decode_kv += cache.windowed * min(length, cache.window)
            if length < cache.window:
                plan.growth += cache.windowed
                steps = min(steps, cache.window - length)
    # A step with prompt tokens in it is followed by a different one.
    plan.steps = 1 if plan.prefill > 0 else steps


@inlined
def _plan_weights(fleet: Fleet, rules: Rules, s: Serving, i: int, now_s: float) -> None:
    # Which layers the step reads from HBM, and which it leaves there for the next ones.
    inst = s.instance[i]
    plan = s.plan[inst.on_device]
    plan.kept = 0
    plan.copied = 0
    if not rules.traits.keep.keeps_weights:
        return
    arch = fleet.deployment[inst.model].arch
    most = rules.traits.keep.engines_kept
    if most > 0:
        drop_older(fleet, s, i, most)
    plan.kept = inst.kept
    left = fleet.layers[arch] - inst.kept
    if left == 0:
        return
    d = inst.on_device
    room = room_bytes(s, d) + idle_weight_bytes(fleet, s, d)
    fill = layers_to_keep(rules.system.keep, room, fleet.layer_bytes[arch], left)
    displaces = False
    least = rules.traits.keep.displacing_share * fleet.layers[arch]
    if fill < left and inst.kept + left >= least:
        others = s.device[d].weight_bytes - kept_bytes(fleet, s, i)
        all_room = room_bytes(s, d) + others
        most = layers_to_keep(rules.system.keep, all_room, fleet.layer_bytes[arch], left)
        if most > fill and inst.kept + most >= least:
            is_last = s.device[d].holder == i
            displaces = is_last or left_of_stay_s(fleet, rules, s, d, now_s) <= 0.0
        if displaces:
            fill, room = most, all_room
    if fill == left and fleet.head_bytes[arch] + fill * fleet.layer_bytes[arch] > room:
        fill -= 1  # the head comes with the last layer
    if fill <= 0:
        return
    need = fill * fleet.layer_bytes[arch] + (fleet.head_bytes[arch] if fill == left else 0.0)
    drop_weights(fleet, rules, s, d, need, not displaces, i)
    if displaces and s.device[d].holder != i:
        s.device[d].holder, s.device[d].held_since_s = i, now_s
    before = kept_bytes(fleet, s, i)
    inst.kept += fill
    s.device[inst.on_device].weight_bytes += kept_bytes(fleet, s, i) - before
    plan.copied = fill
    plan.steps = 1


@jitable
def _best_variant(fleet: Fleet, rules: Rules, s: Serving, i: int, pair: int) -> int:
    # Of the step as planned, by the cost model and what alpha's policy pays for the link.
    inst = s.instance[i]
    plan = s.plan[inst.on_device]
    layers = fleet.layers[fleet.deployment[inst.model].arch]
    report = s.report[inst.on_device]
    streams = plan.kept + plan.copied < layers
    for a in range(len(s.alone_s)):
        if a == 0 or streams:  # else alpha changes nothing
            s.alone_s[a] = step_alone_s(fleet.costs, pair, plan, layers, a)
            s.link_bytes[a] = step_bytes(fleet.costs, pair, plan, layers, a)[0]
        else:
            s.alone_s[a] = s.alone_s[0]
            s.link_bytes[a] = s.link_bytes[0]
    gb_s = link_price(rules.system.alpha, report.c2c) / s.chip[inst.chip].link_gbps
    return int(best_alpha_index(s.alone_s, s.link_bytes, report.available_gbps, gb_s))


@inlined
def _plan_alpha(fleet: Fleet, rules: Rules, s: Serving, i: int, pair: int) -> None:
    inst = s.instance[i]
    plan = s.plan[inst.on_device]
    variants = len(s.alone_s)
    layers = fleet.layers[fleet.deployment[inst.model].arch]
    if rules.traits.alpha.knows_costs:
        plan.alpha = _best_variant(fleet, rules, s, i, pair)
        inst.alpha = plan.alpha / max(1, variants - 1)
    else:
        plan.alpha = alpha_index(inst.alpha, variants)
    if rules.traits.turn.link_gate < math.inf:
        alone_s = step_alone_s(fleet.costs, pair, plan, layers, plan.alpha)
        plan.link_gbps = step_bytes(fleet.costs, pair, plan, layers, plan.alpha)[0] / alone_s / 1e9


@inlined
def _chunk(fleet: Fleet, rules: Rules, s: Serving, i: int) -> int:
    inst = s.instance[i]
    profiled = fleet.chunk[fleet.deployment[inst.model].arch, inst.kind]
    decodes = inst.n_decode if fleet.mixes else 0
    tokens = chunk_tokens(rules.system.chunk, profiled, inst.backlog, decodes)
    # tables end there
    return int(min(tokens, fleet.costs.body_s.shape[1] - 1 - fleet.max_batch))


@inlined
def compose(fleet: Fleet, rules: Rules, s: Serving, i: int, most: int, now_s: float) -> None:
    """Admit waiting requests and start the next step of instance `i`, which has work.

    A step holds up to one chunk of prompt tokens, first come first served, and one token of every
    decoding sequence. Without `Fleet.mixes` a step with prompt tokens has no decodes. A step
    without prompt tokens is a run of equal decode steps until the first sequence ends; an
    `Interrupt` may end it earlier.

    Args:
      most: decode steps of the run at most; 1 if something else waits for the device or the link.
    """
    inst = s.instance[i]
    dev = s.device[inst.on_device]
    plan = s.plan[inst.on_device]
    plan.kv_in_bytes, plan.kv_out_bytes = 0.0, 0.0
    if inst.parked_bytes > 0.0:
        bring_in(fleet, rules, s, i)
    if inst.draining == 0:
        _admit(fleet, rules, s, i, now_s)
    pair = pair_of(fleet, s, i)
    plan.instance = i
    _plan_prefill(fleet, s, i, pair, _chunk(fleet, rules, s, i))
    _note_starts(s, i, now_s)
    _plan_decode(fleet, s, i, pair)
    plan.steps = min(plan.steps, most)
    if rules.traits.experts.caches_experts and not fleet.folds_experts:
        plan.steps = 1  # each takes other experts
    _plan_weights(fleet, rules, s, i, now_s)
    if s.blocks.pool[inst.on_device].idle_bytes > 0.0:
        trim_prefixes(fleet, rules, s, inst.on_device)
    _plan_alpha(fleet, rules, s, i, pair)
    if rules.traits.vary.follows_waits:
        plan.alpha = vary_now(fleet, rules, s, i, now_s)
        if inst.deals != 0:
            plan.steps = 1
    if fleet.by_turns:
        plan.steps = 1
    if fleet.opens_all:
        count_step(fleet, rules, s, i)
    plan.is_turn = 1 if dev.last >= 0 and dev.last != i else 0
    if not fleet.folds_turns and (plan.is_turn != 0 or plan.kv_in_bytes + plan.kv_out_bytes > 0.0):
        plan.steps = 1  # what comes before the step shares the link, and is paid once
    inst.last_used_s = now_s
    inst.state = RUNNING
    dev.running = i
    dev.last = i
    emit(s, ACT_RUN, inst.on_device)
