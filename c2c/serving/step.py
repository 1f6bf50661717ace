"""The pure step of the serving loop: what an event changes and which actions follow.

A step is one of `on_arrival`, `on_ready`, `on_step_end`, and then `start_asked`.
"""

from __future__ import annotations

from c2c.policies import (
    AlphaObservation,
    AlphaState,
    adjust_alpha,
    jitable,
    may_join,
    route,
    wants_another,
)
from c2c.serving.actions import ask
from c2c.serving.batching import next_part
from c2c.serving.hbm import pair_of, request_bytes, room_bytes
from c2c.serving.placing import (
    device_load_s,
    drop_claim,
    make_room,
    place_pending,
    try_place,
)
from c2c.serving.pools import arrived, entry_of
from c2c.serving.queues import (
    append_pending,
    append_waiting,
    release_slot,
    return_waiting,
    take_pending,
    take_slot,
)
from c2c.serving.state import FAIL_CONTEXT, FAIL_KV, FAIL_NONE, Fleet, Rules, Serving
from c2c.serving.turns import settle, start_asked, wake

__all__ = ["on_arrival", "on_ready", "on_step_end", "start_asked"]


@jitable
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
        out.slice = inst.on_device
        out.chip = inst.chip
        steps = inst.sum_steps - req.from_steps
        out.alpha_mean = (inst.sum_alpha - req.from_alpha) / steps if steps > 0.0 else 0.0
        out.link_bytes = inst.sum_link - req.from_link
        out.hbm_bytes = inst.sum_hbm - req.from_hbm
    else:
        out.slice = -1
        out.chip = -1
        out.alpha_mean = 0.0
        out.link_bytes = 0.0
        out.hbm_bytes = 0.0
    release_slot(s, slot)


@jitable
def _fail(s: Serving, slot: int, now_s: float, reason: int) -> None:
    req = s.request[slot]
    req.instance = -1
    req.admitted_s = now_s
    req.started_s = now_s
    req.first_token_s = now_s
    s.count[0].failed += 1
    _write_record(s, slot, now_s, reason)


@jitable
def _finish(fleet: Fleet, s: Serving, i: int, slot: int, now_s: float) -> None:
    req = s.request[slot]
    inst = s.instance[i]
    inst.kv_used -= req.prompt + req.output
    s.device[inst.on_device].kv_bytes -= request_bytes(fleet, s, i, req.prompt + req.output)
    s.count[0].finished += 1
    _write_record(s, slot, now_s, FAIL_NONE)


@jitable
def _largest_kv(fleet: Fleet, s: Serving, m: int) -> int:
    largest = 0
    for k in range(fleet.home_first[m], fleet.home_first[m + 1]):
        chip = s.chip[fleet.home_chip[k]]
        for d in range(chip.first, chip.last):
            capacity = fleet.kv_capacity[fleet.deployment[m].arch, s.device[d].kind]
            largest = max(largest, capacity)
    return largest


@jitable
def _routes(fleet: Fleet, s: Serving, m: int) -> int:
    n = 0
    i = s.model[m].active
    while i >= 0:
        inst = s.instance[i]
        row = s.routes[n]
        row.instance = i
        row.outstanding = inst.n_wait + inst.n_prefill + inst.n_decode
        row.draining = inst.draining
        row.kv_capacity = inst.kv_capacity
        row.load_s = device_load_s(fleet, s, inst.on_device) if fleet.residents > 1 else 0.0
        n += 1
        i = inst.next_same
    return n


@jitable
def _route(fleet: Fleet, rules: Rules, s: Serving, m: int, tokens: int) -> int:
    # The instance that takes a request of model m; -1 where the model has to be placed.
    if s.model[m].active < 0:
        return -1
    row = route(rules.system.route, rules.own.route, s.routes, _routes(fleet, s, m), tokens)
    return int(s.routes[row].instance) if row >= 0 else -1


@jitable
def _is_too_busy(fleet: Fleet, rules: Rules, s: Serving, i: int, tokens: int) -> bool:
    inst = s.instance[i]
    outstanding = inst.n_wait + inst.n_prefill + inst.n_decode
    backlog_s = inst.backlog * fleet.costs.prompt_s[pair_of(fleet, s, i)]
    batch = inst.n_prefill + inst.n_decode
    need = request_bytes(fleet, s, i, tokens)
    room = room_bytes(s, inst.on_device) + s.device[inst.on_device].weight_bytes
    fits = may_join(rules.system.admit, need, room, batch, fleet.max_batch)
    return bool(wants_another(rules.system.scale, outstanding, backlog_s, not fits))


@jitable
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
    i = _route(fleet, rules, s, m, tokens)
    if i >= 0:
        if _is_too_busy(fleet, rules, s, i, tokens):
            placed = try_place(fleet, rules, s, m, tokens, -1, now_s)
            if placed >= 0:
                i = placed
        append_waiting(s, i, slot)
        wake(fleet, rules, s, i)
        return
    if tokens > _largest_kv(fleet, s, m):
        _fail(s, slot, now_s, FAIL_KV)
        return
    append_pending(s, m, slot)
    # Later requests do not overtake: only the first in line asks for a slice.
    if s.model[m].n_wait == 1:
        try_place(fleet, rules, s, m, tokens, -1, now_s)


@jitable
def _hand_over(fleet: Fleet, rules: Rules, s: Serving, m: int, now_s: float) -> bool:
    # What waits for a model that is active after all (on a slice drained in vain, or on another
    # one) goes there: nothing would place the model again.
    model = s.model[m]
    if model.n_wait == 0 or model.active < 0:
        return False
    head = s.request[model.wait_head]
    i = _route(fleet, rules, s, m, head.prompt + head.output)
    if i < 0:
        return False
    drop_claim(s, m)
    take_pending(s, m, i)
    wake(fleet, rules, s, i)
    return True


@jitable
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


@jitable
def _go_on(fleet: Fleet, rules: Rules, s: Serving, i: int, now_s: float) -> None:
    # Instance i has ended a load or a step: its device turns to what is next.
    ask(s, s.instance[i].on_device)
    if not settle(fleet, rules, s, i, now_s):
        _after_idle(fleet, rules, s, i, now_s)


@jitable
def on_ready(fleet: Fleet, rules: Rules, s: Serving, d: int, now_s: float) -> None:
    """The model that device `d` was loading has become active: serve what waits for it."""
    i = int(s.plan[d].instance)
    arrived(fleet, s, entry_of(fleet, s.instance[i].model, s.instance[i].chip))
    _go_on(fleet, rules, s, i, now_s)


@jitable
def _end_decodes(fleet: Fleet, s: Serving, i: int, now_s: float) -> None:
    inst = s.instance[i]
    kept = 0
    for k in range(inst.n_decode):
        slot = s.decoding[i, k]
        if s.request[slot].target == inst.decode_clock:
            _finish(fleet, s, i, slot, now_s)
        else:
            s.decoding[i, kept] = slot
            kept += 1
    inst.n_decode = kept


@jitable
def _end_prefills(fleet: Fleet, s: Serving, i: int, now_s: float) -> None:
    inst = s.instance[i]
    kept = 0
    for k in range(inst.n_prefill):
        slot = s.prefilling[i, k]
        req = s.request[slot]
        if req.step_tokens > 0:
            req.prefilled += req.step_tokens
            inst.backlog -= req.step_tokens
            req.step_tokens = 0
            req.chunks += 1
        if req.prefilled < req.prompt:
            s.prefilling[i, kept] = slot
            kept += 1
            continue
        req.first_token_s = now_s
        if req.output == 1:
            _finish(fleet, s, i, slot, now_s)
        else:
            req.target = inst.decode_clock + req.output - 1
            s.decoding[i, inst.n_decode] = slot
            inst.n_decode += 1
    inst.n_prefill = kept


@jitable
def _control_alpha(rules: Rules, s: Serving, i: int) -> None:
    inst = s.instance[i]
    plan, report = s.plan[inst.on_device], s.report[inst.on_device]
    seen = AlphaObservation(report.latency_s * plan.parts, plan.slo_s, report.hbm, report.c2c)
    state = AlphaState(inst.alpha, inst.seen_latency_s, inst.seen_hbm, inst.seen_c2c)
    state = adjust_alpha(rules.system.alpha, state, seen)
    inst.alpha = state.alpha
    inst.seen_latency_s = state.latency_s
    inst.seen_hbm = state.hbm_utilisation
    inst.seen_c2c = state.c2c_utilisation


@jitable
def on_step_end(fleet: Fleet, rules: Rules, s: Serving, d: int, now_s: float) -> None:
    """Device `d` finished the steps it reports: account, control alpha, go on."""
    plan, report = s.plan[d], s.report[d]
    i = int(plan.instance)
    inst = s.instance[i]
    steps = report.steps / float(plan.parts)
    participants = float(plan.decodes + plan.prefills)
    inst.sum_steps += steps
    inst.sum_alpha += steps * plan.alpha / max(1, len(s.alone_s) - 1)
    inst.sum_link += report.link_bytes / participants
    inst.sum_hbm += report.hbm_bytes / participants
    _control_alpha(rules, s, i)
    if next_part(fleet, rules, s, d):
        return
    inst.last_step_s = now_s
    if plan.decodes > 0:
        inst.decode_clock += report.steps
        _end_decodes(fleet, s, i, now_s)
    if plan.prefill > 0:
        _end_prefills(fleet, s, i, now_s)
    make_room(fleet, rules, s, inst.chip, now_s)
    _go_on(fleet, rules, s, i, now_s)
