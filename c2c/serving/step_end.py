"""End of a step."""

from __future__ import annotations

from c2c.policies import AlphaObservation, AlphaState, adjust_alpha, inlined, jitable, note_end
from c2c.serving.batches.handover import append_decode
from c2c.serving.batches.moments import after_computing
from c2c.serving.batches.preemption import is_cleared, set_aside
from c2c.serving.batches.records import finish
from c2c.serving.batches.scheduling import return_spare
from c2c.serving.decode_target import hand_on
from c2c.serving.memory.hbm import pair_of
from c2c.serving.placement import make_room
from c2c.serving.rebalance import deal
from c2c.serving.tables.batch import keep_decode
from c2c.serving.tables.charges import spare_decodes
from c2c.serving.tables.costs import decode_alone_s, prompt_alone_s
from c2c.serving.tables.roles import EVERYTHING
from c2c.serving.tables.state import ENDS_AT, SLOT, Fleet, Loop, Rules, Serving
from c2c.serving.vacancy import after_idle, go_elsewhere, go_on

__all__ = ["account_step", "end_step"]


@jitable
def _note_end(w: Loop, i: int, slot: int, now_s: float) -> None:
    # A request has ended well: tell who chooses variants by how long requests wait.
    req, inst, model = w.s.request[slot], w.s.instance[i], w.fleet.deployment[w.s.instance[i].model]
    latency_s = now_s - req.arrival_s
    alone_s = min(inst.sum_alone_s - req.from_alone_s, latency_s)
    first_s = req.was_first_token_s if req.carried > 0 else req.first_token_s
    is_prompt = first_s - req.arrival_s <= model.ttft_slo_s
    is_steady = now_s - first_s <= model.tpot_slo_s * (req.carried + req.output - 1)
    vary, memory = w.rules.system.vary, w.rules.own.vary
    note_end(vary, memory, inst.chip, i, latency_s, alone_s, is_prompt, is_steady)


@inlined
def _end_decodes(w: Loop, i: int, now_s: float) -> None:
    inst = w.s.instance[i]
    count = 0
    for k in range(inst.n_decode):
        if w.s.decoding[i, k, ENDS_AT] == inst.decode_clock:
            if w.rules.traits.vary.follows_waits:
                _note_end(w, i, w.s.decoding[i, k, SLOT], now_s)
            finish(w, i, w.s.decoding[i, k, SLOT], now_s)
            continue
        keep_decode(w.s, i, k, count)
        count += 1
    inst.n_decode = count


@inlined
def _end_prefills(w: Loop, i: int, now_s: float) -> None:
    inst = w.s.instance[i]
    count = 0
    for k in range(inst.n_prefill):
        slot = w.s.prefilling[i, k]
        req = w.s.request[slot]
        if req.step_tokens > 0:
            req.prefilled += req.step_tokens
            inst.backlog -= req.step_tokens
            req.step_tokens = 0
            req.chunks += 1
            after_computing(w, i, slot)
        if req.prefilled < req.prompt:
            w.s.prefilling[i, count] = slot
            count += 1
            continue
        req.first_token_s = now_s
        req.from_alone_s += inst.sum_alone_s
        if req.output == 1:
            if w.rules.traits.vary.follows_waits:
                _note_end(w, i, slot, now_s)
            finish(w, i, slot, now_s)
        else:
            append_decode(w.s, i, slot, req.output - 1)
    inst.n_prefill = count


@inlined
def _control_alpha(rules: Rules, s: Serving, i: int) -> None:
    inst = s.instance[i]
    plan, report = s.plan[inst.on_device], s.report[inst.on_device]
    seen = AlphaObservation(report.latency_s, plan.slo_s, report.hbm, report.c2c)
    state = AlphaState(inst.alpha, inst.seen_latency_s, inst.seen_hbm, inst.seen_c2c)
    state = adjust_alpha(rules.system.alpha, state, seen)
    inst.alpha = state.alpha
    inst.seen_latency_s = state.latency_s
    inst.seen_hbm = state.hbm_utilisation
    inst.seen_c2c = state.c2c_utilisation


@jitable
def _count_alone(fleet: Fleet, s: Serving, d: int, steps: float) -> None:
    # What the steps took with nothing beside them: the decodes' part goes to all that decode, that
    # of prompts to each by its tokens.
    plan = s.plan[d]
    i = plan.instance
    pair = pair_of(fleet, s, i)
    decode_s = decode_alone_s(fleet.costs, pair, plan.decodes, plan.decode_kv)
    decode_s = decode_s if plan.decodes > 0 else 0.0
    prompt_s = prompt_alone_s(fleet.costs, pair, plan.prefill)
    each_s = steps * s.report[d].alone_s / max(decode_s + prompt_s, 1e-30)
    s.instance[i].sum_alone_s += each_s * decode_s
    for k in range(s.instance[i].n_prefill):
        req = s.request[s.prefilling[i, k]]
        if req.step_tokens > 0:
            req.from_alone_s -= each_s * prompt_s * req.step_tokens / plan.prefill


@inlined
def account_step(w: Loop, d: int) -> None:
    """Account the report of device `d` and control alpha."""
    plan, report = w.s.plan[d], w.s.report[d]
    inst = w.s.instance[plan.instance]
    steps = float(report.steps)
    participants = float(plan.decodes + plan.prefills)
    alpha = steps * plan.alpha / max(1, len(w.s.alone_s) - 1)
    link, hbm = report.link_bytes / participants, report.hbm_bytes / participants
    inst.sum_steps += steps
    inst.sum_alpha += alpha
    inst.sum_link += link
    inst.sum_hbm += hbm
    if plan.decodes < inst.n_decode:
        spare_decodes(w.s, plan.instance, steps, alpha, link, hbm)
    if w.rules.traits.vary.follows_waits:
        _count_alone(w.fleet, w.s, d, steps)
    _control_alpha(w.rules, w.s, plan.instance)


@inlined
def end_step(w: Loop, d: int, now_s: float) -> None:
    """Give device `d`'s requests their tokens, and continue."""
    plan = w.s.plan[d]
    i = int(plan.instance)
    inst = w.s.instance[i]
    inst.last_step_s = now_s
    if plan.decodes == inst.n_decode:  # else they waited
        inst.last_token_s = now_s
    inst.looked_at = -1
    if plan.decodes > 0:
        inst.decode_clock += w.s.report[d].steps
        _end_decodes(w, i, now_s)
        if w.rules.traits.batch.grows:
            return_spare(w, i)
    if plan.prefill > 0:
        _end_prefills(w, i, now_s)
    m = int(inst.model)
    is_given_up = is_cleared(w.s, i)
    if inst.deals != 0:
        deal(w, i, now_s)
    if (w.fleet.role[d] != EVERYTHING or w.fleet.hands_to[inst.kind] >= 0) and not is_given_up:
        hand_on(w, i, now_s)
    if is_given_up:
        set_aside(w, i)
    elif w.s.count[0].pending > 0:
        drained = make_room(w, inst.chip, now_s)
        if drained >= 0:
            after_idle(w, drained, now_s)
    go_on(w, i, now_s)
    if is_given_up:
        go_elsewhere(w, m, now_s)
