"""Continuous batching with chunked prefill."""

from __future__ import annotations

import math

from c2c.cost import cache_pairs, chunk_places
from c2c.policies import (
    alpha_index,
    best_alpha_index,
    fill,
    inlined,
    jitable,
    layers_to_keep,
    link_price,
)
from c2c.serving.batches.moments import after_filling, before_plan
from c2c.serving.batches.schedulers.reserved import fill_reserved
from c2c.serving.memory.hbm import (
    drop_older,
    drop_weights,
    idle_weight_bytes,
    kept_bytes,
    left_of_stay_s,
    pair_of,
    room_bytes,
)
from c2c.serving.memory.variants import vary_now
from c2c.serving.tables.actions import ACT_RUN, emit
from c2c.serving.tables.batch import kv_tokens, tokens_left
from c2c.serving.tables.costs import shape_of, step_alone_s, step_bytes
from c2c.serving.tables.state import RUNNING, Fleet, Loop, Serving

__all__ = ["compose"]


@inlined
def _sum_prompts(fleet: Fleet, s: Serving, i: int, pair: int) -> None:
    # What the prompts add to the next step of instance i.
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
        share = req.step_tokens
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
def _sum_decodes(fleet: Fleet, s: Serving, i: int, pair: int) -> None:
    # What the decodes add, all or none.
    inst = s.instance[i]
    plan = s.plan[inst.on_device]
    cache = shape_of(fleet.costs.reads, pair)
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
def _plan_weights(w: Loop, i: int, now_s: float) -> None:
    # Which layers the step reads from HBM, and which it leaves there for the next ones.
    inst = w.s.instance[i]
    plan = w.s.plan[inst.on_device]
    plan.kept = 0
    plan.copied = 0
    if not w.rules.traits.keep.keeps_weights:
        return
    arch = w.fleet.deployment[inst.model].arch
    most = w.rules.traits.keep.engines_kept
    if most > 0:
        drop_older(w.fleet, w.s, i, most)
    plan.kept = inst.kept
    rest_layers = w.fleet.layers[arch] - inst.kept
    if rest_layers == 0:
        return
    d = inst.on_device
    room = room_bytes(w.s, d) + idle_weight_bytes(w.fleet, w.s, d)
    fill = layers_to_keep(w.rules.system.keep, room, w.fleet.layer_bytes[arch], rest_layers)
    displaces = False
    least = w.rules.traits.keep.displacing_share * w.fleet.layers[arch]
    if fill < rest_layers and inst.kept + rest_layers >= least:
        others = w.s.device[d].weight_bytes - kept_bytes(w.fleet, w.s, i)
        all_room = room_bytes(w.s, d) + others
        most = layers_to_keep(w.rules.system.keep, all_room, w.fleet.layer_bytes[arch], rest_layers)
        if most > fill and inst.kept + most >= least:
            is_last = w.s.device[d].holder == i
            displaces = is_last or left_of_stay_s(w, d, now_s) <= 0.0
        if displaces:
            fill, room = most, all_room
    if fill == rest_layers and w.fleet.head_bytes[arch] + fill * w.fleet.layer_bytes[arch] > room:
        fill -= 1  # the head comes with the last layer
    if fill <= 0:
        return
    need = fill * w.fleet.layer_bytes[arch] + (
        w.fleet.head_bytes[arch] if fill == rest_layers else 0.0
    )
    drop_weights(w, d, need, not displaces, i)
    if displaces and w.s.device[d].holder != i:
        w.s.device[d].holder, w.s.device[d].held_since_s = i, now_s
    before = kept_bytes(w.fleet, w.s, i)
    inst.kept += fill
    w.s.device[inst.on_device].weight_bytes += kept_bytes(w.fleet, w.s, i) - before
    plan.copied = fill
    plan.steps = 1


@jitable
def _best_variant(w: Loop, i: int, pair: int) -> int:
    # Of the step as planned, by the cost model and what alpha's policy pays for the link.
    inst = w.s.instance[i]
    plan = w.s.plan[inst.on_device]
    layers = w.fleet.layers[w.fleet.deployment[inst.model].arch]
    report = w.s.report[inst.on_device]
    streams = plan.kept + plan.copied < layers
    for a in range(len(w.s.alone_s)):
        if a == 0 or streams:  # else alpha changes nothing
            w.s.alone_s[a] = step_alone_s(w.fleet.costs, pair, plan, layers, a)
            w.s.link_bytes[a] = step_bytes(w.fleet.costs, pair, plan, layers, a)[0]
        else:
            w.s.alone_s[a] = w.s.alone_s[0]
            w.s.link_bytes[a] = w.s.link_bytes[0]
    gb_s = link_price(w.rules.system.alpha, report.c2c) / w.s.chip[inst.chip].link_gbps
    return int(best_alpha_index(w.s.alone_s, w.s.link_bytes, report.available_gbps, gb_s))


@inlined
def _plan_alpha(w: Loop, i: int, pair: int) -> None:
    inst = w.s.instance[i]
    plan = w.s.plan[inst.on_device]
    variants = len(w.s.alone_s)
    layers = w.fleet.layers[w.fleet.deployment[inst.model].arch]
    if w.rules.traits.alpha.knows_costs:
        plan.alpha = _best_variant(w, i, pair)
        inst.alpha = plan.alpha / max(1, variants - 1)
    else:
        plan.alpha = alpha_index(inst.alpha, variants)
    if w.rules.traits.turn.link_gate < math.inf:
        alone_s = step_alone_s(w.fleet.costs, pair, plan, layers, plan.alpha)
        plan.link_gbps = (
            step_bytes(w.fleet.costs, pair, plan, layers, plan.alpha)[0] / alone_s / 1e9
        )


@inlined
def compose(w: Loop, i: int, most: int, now_s: float) -> None:
    """Fill and start instance `i`'s next step, or a run of decodes.

    Args:
      most: decode steps; 1 if others wait for device or link.
    """
    inst = w.s.instance[i]
    dev = w.s.device[inst.on_device]
    plan = w.s.plan[inst.on_device]
    plan.kv_in_bytes, plan.kv_out_bytes = 0.0, 0.0
    before_plan(w, i)
    pair = pair_of(w.fleet, w.s, i)
    plan.instance = i
    if w.rules.traits.batch.is_default:  # called directly: at an address it would be a copy
        steps = fill_reserved(w, i, now_s, True)
    else:
        steps = fill(w.rules.system.batch, w, i, now_s)
    _sum_prompts(w.fleet, w.s, i, pair)
    _note_starts(w.s, i, now_s)
    _sum_decodes(w.fleet, w.s, i, pair)
    plan.steps = min(plan.steps, most, steps)
    if w.rules.traits.experts.caches_experts and not w.fleet.folds_experts:
        plan.steps = 1  # each takes other experts
    after_filling(w, i)
    _plan_weights(w, i, now_s)
    _plan_alpha(w, i, pair)
    if w.rules.traits.vary.follows_waits:
        plan.alpha = vary_now(w, i, now_s)
        if inst.deals != 0:
            plan.steps = 1
    if w.fleet.by_turns:
        plan.steps = 1
    plan.is_turn = 1 if dev.last >= 0 and dev.last != i else 0
    if not w.fleet.folds_turns and (
        plan.is_turn != 0 or plan.kv_in_bytes + plan.kv_out_bytes > 0.0
    ):
        plan.steps = 1  # what comes before the step shares the link, and is paid once
    inst.last_used_s = now_s
    inst.state = RUNNING
    dev.running = i
    dev.last = i
    emit(w.s, ACT_RUN, inst.on_device)
