"""The pure step of the serving loop: what an event changes and which actions follow."""

from __future__ import annotations

from numba.extending import register_jitable

from c2c.policies import (
    AlphaObservation,
    AlphaState,
    adjust_alpha,
    may_join,
    route_least_outstanding,
    wants_another_instance,
)
from c2c.policies.alpha import FEEDBACK
from c2c.serving.batching import ACT_INTERRUPT, compose, emit, next_part
from c2c.serving.placing import drop_claim, make_room, place_pending, try_place
from c2c.serving.queues import (
    append_pending,
    append_waiting,
    release_slot,
    return_waiting,
    take_pending,
    take_slot,
)
from c2c.serving.state import (
    FAIL_CONTEXT,
    FAIL_KV,
    FAIL_NONE,
    IDLE,
    RUNNING,
    Fleet,
    Rules,
    Serving,
)

__all__ = ["on_arrival", "on_ready", "on_step_end"]


@register_jitable
def _write_record(s: Serving, slot: int, now_s: float, failure: int) -> None:
    req = s.request[slot]
    out = s.records[s.count[0].out]
    s.count[0].out += 1
    out.id = req.id
    out.model = req.model
    out.prompt_tokens = req.prompt
    out.output_tokens = req.output
    out.instance = req.instance
    out.failure = failure
    out.start_kind = req.start_kind
    out.chunks = req.chunks
    out.arrival_s = req.arrival_s
    out.admitted_s = req.admitted_s
    out.started_s = req.started_s
    out.first_token_s = req.first_token_s
    out.finished_s = now_s
    if req.instance >= 0:
        inst = s.instance[req.instance]
        out.chip = inst.chip
        steps = inst.sum_steps - req.from_steps
        out.alpha_mean = (inst.sum_alpha - req.from_alpha) / steps if steps > 0.0 else 0.0
        out.link_bytes = inst.sum_link - req.from_link
        out.hbm_bytes = inst.sum_hbm - req.from_hbm
    else:
        out.chip = -1
        out.alpha_mean = 0.0
        out.link_bytes = 0.0
        out.hbm_bytes = 0.0
    release_slot(s, slot)


@register_jitable
def _fail(s: Serving, slot: int, now_s: float, reason: int) -> None:
    req = s.request[slot]
    req.instance = -1
    req.admitted_s = now_s
    req.started_s = now_s
    req.first_token_s = now_s
    s.count[0].failed += 1
    _write_record(s, slot, now_s, reason)


@register_jitable
def _finish(s: Serving, i: int, slot: int, now_s: float) -> None:
    req = s.request[slot]
    s.instance[i].kv_used -= req.prompt + req.output
    s.count[0].finished += 1
    _write_record(s, slot, now_s, FAIL_NONE)


@register_jitable
def _largest_kv(fleet: Fleet, s: Serving, m: int) -> int:
    largest = 0
    for k in range(fleet.home_first[m], fleet.home_first[m + 1]):
        chip = s.chip[fleet.home_chip[k]]
        for i in range(chip.first, chip.last):
            capacity = fleet.kv_capacity[fleet.deployment[m].arch, s.instance[i].kind]
            largest = max(largest, capacity)
    return largest


@register_jitable
def _routes(s: Serving, m: int) -> int:
    n = 0
    i = s.model[m].active
    while i >= 0:
        inst = s.instance[i]
        row = s.routes[n]
        row.instance = i
        row.outstanding = inst.n_wait + inst.n_prefill + inst.n_decode
        row.draining = inst.draining
        row.kv_capacity = inst.kv_capacity
        n += 1
        i = inst.next_same
    return n


@register_jitable
def _wake(fleet: Fleet, rules: Rules, s: Serving, i: int, now_s: float) -> None:
    # Requests were queued at instance i: start it, or end its run of decode steps for them.
    inst = s.instance[i]
    if inst.state == IDLE:
        compose(fleet, rules, s, i, now_s)
    elif inst.state == RUNNING and inst.plan_steps > 1:
        head = s.request[inst.wait_head]
        batch = inst.n_prefill + inst.n_decode
        tokens = head.prompt + head.output
        if may_join(inst.kv_used, inst.kv_capacity, tokens, batch, fleet.max_batch):
            emit(s, ACT_INTERRUPT, i)


@register_jitable
def on_arrival(
    fleet: Fleet,
    rules: Rules,
    s: Serving,
    now_s: float,
    request_id: int,
    m: int,
    prompt: int,
    output: int,
) -> None:
    """Take a request: route it to an active instance, place its model, or let it wait.

    Source: C2CServe section 6.1, steps 1 and 2.
    """
    slot = take_slot(s)
    req = s.request[slot]
    req.id = request_id
    req.model = m
    req.prompt = prompt
    req.output = output
    req.arrival_s = now_s
    req.prefilled = 0
    req.step_tokens = 0
    req.chunks = 0
    req.start_kind = 0
    s.count[0].arrived += 1
    tokens = prompt + output
    if tokens > fleet.deployment[m].max_context:
        _fail(s, slot, now_s, FAIL_CONTEXT)
        return
    row = -1
    if s.model[m].active >= 0:
        row = route_least_outstanding(s.routes, _routes(s, m), tokens)
    if row >= 0:
        i = int(s.routes[row].instance)
        if wants_another_instance(s.routes[row].outstanding, rules.scale_out_at):
            placed = try_place(fleet, rules, s, m, tokens, -1, now_s)
            if placed >= 0:
                i = placed
        append_waiting(s, i, slot)
        _wake(fleet, rules, s, i, now_s)
        return
    if tokens > _largest_kv(fleet, s, m):
        _fail(s, slot, now_s, FAIL_KV)
        return
    append_pending(s, m, slot)
    # Later requests do not overtake: only the first in line asks for a slice.
    if s.model[m].n_wait == 1:
        try_place(fleet, rules, s, m, tokens, -1, now_s)


@register_jitable
def _hand_over(fleet: Fleet, rules: Rules, s: Serving, m: int, now_s: float) -> bool:
    # What waits for a model that is active after all (on a slice drained in vain, or on another
    # one) goes there: nothing would place the model again.
    model = s.model[m]
    if model.n_wait == 0 or model.active < 0:
        return False
    head = s.request[model.wait_head]
    row = route_least_outstanding(s.routes, _routes(s, m), head.prompt + head.output)
    if row < 0:
        return False
    i = int(s.routes[row].instance)
    drop_claim(s, m)
    take_pending(s, m, i)
    _wake(fleet, rules, s, i, now_s)
    return True


@register_jitable
def _after_idle(fleet: Fleet, rules: Rules, s: Serving, i: int, now_s: float) -> None:
    inst = s.instance[i]
    m = int(inst.model)
    was_draining = inst.draining != 0
    if was_draining:
        return_waiting(s, i)
        inst.draining = 0
    place_pending(fleet, rules, s, inst.chip, now_s)
    if was_draining and _hand_over(fleet, rules, s, m, now_s):
        place_pending(fleet, rules, s, inst.chip, now_s)  # its claim no longer holds others back


@register_jitable
def on_ready(fleet: Fleet, rules: Rules, s: Serving, i: int, now_s: float) -> None:
    """A model has become active on instance `i`: start serving what waits for it."""
    s.instance[i].state = IDLE
    if not compose(fleet, rules, s, i, now_s):
        _after_idle(fleet, rules, s, i, now_s)


@register_jitable
def _end_decodes(s: Serving, i: int, now_s: float) -> None:
    inst = s.instance[i]
    kept = 0
    for k in range(inst.n_decode):
        slot = s.decoding[i, k]
        if s.request[slot].target == inst.decode_clock:
            _finish(s, i, slot, now_s)
        else:
            s.decoding[i, kept] = slot
            kept += 1
    inst.n_decode = kept


@register_jitable
def _end_prefills(s: Serving, i: int, now_s: float) -> None:
    inst = s.instance[i]
    kept = 0
    for k in range(inst.n_prefill):
        slot = s.prefilling[i, k]
        req = s.request[slot]
        if req.step_tokens > 0:
            req.prefilled += req.step_tokens
            req.step_tokens = 0
            req.chunks += 1
        if req.prefilled < req.prompt:
            s.prefilling[i, kept] = slot
            kept += 1
            continue
        req.first_token_s = now_s
        if req.output == 1:
            _finish(s, i, slot, now_s)
        else:
            req.target = inst.decode_clock + req.output - 1
            s.decoding[i, inst.n_decode] = slot
            inst.n_decode += 1
    inst.n_prefill = kept


@register_jitable
def _control_alpha(rules: Rules, s: Serving, i: int) -> None:
    if rules.alpha.policy != FEEDBACK:
        return
    inst = s.instance[i]
    seen = AlphaObservation(
        inst.ran_latency_s * inst.plan_parts, inst.plan_slo_s, inst.ran_hbm, inst.ran_c2c
    )
    state = AlphaState(inst.alpha, inst.seen_latency_s, inst.seen_hbm, inst.seen_c2c)
    state = adjust_alpha(state, seen, rules.alpha)
    inst.alpha = state.alpha
    inst.seen_latency_s = state.latency_s
    inst.seen_hbm = state.hbm_utilisation
    inst.seen_c2c = state.c2c_utilisation


@register_jitable
def on_step_end(fleet: Fleet, rules: Rules, s: Serving, i: int, now_s: float) -> None:
    """Instance `i` finished the steps it reports in `ran_*`: account, control alpha, go on."""
    inst = s.instance[i]
    steps = inst.ran_steps / float(inst.plan_parts)
    participants = float(inst.plan_decodes + inst.plan_prefills)
    inst.sum_steps += steps
    inst.sum_alpha += steps * inst.plan_alpha / max(1, len(s.alone_s) - 1)
    inst.sum_link += inst.ran_link_bytes / participants
    inst.sum_hbm += inst.ran_hbm_bytes / participants
    _control_alpha(rules, s, i)
    if next_part(fleet, rules, s, i):
        return
    if inst.plan_decodes > 0:
        inst.decode_clock += inst.ran_steps
        _end_decodes(s, i, now_s)
    if inst.plan_prefill > 0:
        _end_prefills(s, i, now_s)
    make_room(fleet, rules, s, inst.chip, now_s)
    if not compose(fleet, rules, s, i, now_s):
        _after_idle(fleet, rules, s, i, now_s)
