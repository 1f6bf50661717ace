"""Pure step of the serving loop: state changes of an event and the resulting actions.

A step is one of `on_arrival`, `on_ready`, `on_step_end`, and then `start_asked`.
"""

from __future__ import annotations

from c2c.policies import (
    AlphaObservation,
    AlphaState,
    adjust_alpha,
    apart,
    inlined,
    jitable,
    note_end,
    rank,
)
from c2c.serving.actions import ask
from c2c.serving.batch import batch_size, keep_decode
from c2c.serving.charges import spare_decodes
from c2c.serving.costs import decode_alone_s, prompt_alone_s
from c2c.serving.decode_target import hand_on
from c2c.serving.handover import append_decode, carry, goes_directly
from c2c.serving.hbm import holds_on, pair_of
from c2c.serving.placement import drop_claim, make_room, place_pending, try_place
from c2c.serving.pools import arrived, entry_of, homes_of
from c2c.serving.preemption import clear_for, is_cleared, set_aside
from c2c.serving.prefixes import note_computed
from c2c.serving.queues import (
    append_pending,
    append_waiting,
    return_waiting,
    take_pending,
    take_slot,
)
from c2c.serving.rebalance import deal
from c2c.serving.records import fail, finish, leave
from c2c.serving.request_routing import any_active, has_active, is_too_busy, routed
from c2c.serving.roles import DECODES, EVERYTHING
from c2c.serving.state import (
    ENDS_AT,
    FAIL_CONTEXT,
    FAIL_DEVICE,
    FAIL_KV,
    FAIL_MEMORY,
    FAIL_NONE,
    IDLE,
    IN_SERVICE,
    READY,
    SLOT,
    Fleet,
    Loop,
    Rules,
    Serving,
)
from c2c.serving.step_report import leave_late
from c2c.serving.turns import settle, start_asked, wake

__all__ = [
    "account_step",
    "after_idle",
    "after_leaving",
    "end_step",
    "largest_kv",
    "on_arrival",
    "on_carried",
    "on_ready",
    "on_step_end",
    "serve_pending",
    "start_asked",
]


@jitable
def largest_kv(fleet: Fleet, s: Serving, m: int, enough: int) -> int:
    """Return the maximum KV tokens of a device for model `m`'s prompts; -1 if there is none.

    The search ends at the first device that holds `enough`.
    """
    largest = -1
    for k in homes_of(fleet, m):
        chip = s.chip[fleet.home_chip[k]]
        for d in range(chip.first, chip.last):
            if s.device[d].service != IN_SERVICE or fleet.role[d] == DECODES:
                continue
            capacity = fleet.kv_capacity[fleet.deployment[m].arch, s.device[d].kind]
            largest = max(largest, capacity)
            if largest >= enough:
                return int(largest)
    return largest


@inlined
def on_arrival(
    w: Loop,
    now_s: float,
    request_id: int,
    m: int,
    prompt: int,
    output: int,
    priority: int,
    ends_by_s: float,
) -> None:
    """Handle an arrival: route it to an active instance, place its model, or queue it.

    `ends_by_s` is the request's deadline; inf: it has none.

    Source: C2CServe section 6.1, steps 1 and 2.
    """
    slot = take_slot(w.s)
    req = w.s.request[slot]
    req.id = request_id
    req.model = m
    req.prompt = prompt
    req.output = output
    req.arrival_s = now_s
    req.prefilled = 0
    req.step_tokens = 0
    req.chunks = 0
    req.start_kind = 0
    req.priority = priority
    model, costs = w.fleet.deployment[m], w.fleet.costs
    pair = model.arch * costs.kinds
    req.rank = rank(
        w.rules.system.order, now_s, prompt * costs.prompt_s[pair],
        max(0, output - 1) * costs.decode_s[pair], model.ttft_slo_s,
    )  # fmt: skip
    req.carried = 0
    req.again = 0
    req.held_by = -1
    req.made = 0
    req.unreserved = 0
    req.ends_by_s = ends_by_s
    req.ending = FAIL_NONE
    w.s.count[0].arrived += 1
    tokens = prompt + output
    if tokens > w.fleet.deployment[m].max_context:
        fail(w.s, slot, now_s, FAIL_CONTEXT)
        return
    i = routed(w, m, slot, False)
    if i >= 0:
        if is_too_busy(w, i, tokens):
            placed = try_place(w, m, tokens, -1, now_s)
            if placed >= 0:
                i = placed
        append_waiting(w.s, i, slot)
        wake(w, i)
        return
    largest = largest_kv(w.fleet, w.s, m, tokens)
    if tokens > largest:
        reason = FAIL_KV if largest > 0 else FAIL_MEMORY
        fail(w.s, slot, now_s, reason if largest >= 0 else FAIL_DEVICE)
        return
    append_pending(w.fleet, w.s, m, slot)
    # Later requests do not overtake: only the first in line asks for a slice.
    if w.s.model[m].wait_head != slot or try_place(w, m, tokens, -1, now_s) >= 0:
        return
    if not serve_pending(w, m):
        _clear(w, m, now_s)


@jitable
def serve_pending(w: Loop, m: int) -> bool:
    """Send the pending requests of model `m` to an active instance, if there is one.

    Needed after a drain in vain, or if another instance has become active: nothing else would place
    the model again.
    """
    model = w.s.model[m]
    if model.n_wait == 0 or model.active < 0:
        return False
    head = w.s.request[model.wait_head]
    tokens = head.prompt + head.output
    i = routed(w, m, model.wait_head, False)
    if i < 0:  # routing would rather have the model placed, and it was not
        i = any_active(w.fleet, w.s, m, tokens)
    if i < 0:
        return False
    drop_claim(w.s, m)
    take_pending(w.fleet, w.s, m, i)
    wake(w, i)
    return True


@jitable
def _clear(w: Loop, m: int, now_s: float) -> None:
    # Model m found no slice: less urgent requests give way.
    i = clear_for(w, m)
    if i >= 0:
        before = int(w.s.instance[i].model)
        set_aside(w, i)
        if not holds_on(w.fleet, w.s, i):
            w.s.instance[i].state = IDLE
            after_idle(w, i, now_s)
        _go_elsewhere(w, before, now_s)


@jitable
def _go_elsewhere(w: Loop, m: int, now_s: float) -> None:
    # Requests of model m have lost their slice: another one may be free.
    if w.s.model[m].n_wait > 0 and not has_active(w.fleet, w.s, m):
        head = w.s.request[w.s.model[m].wait_head]
        try_place(w, m, head.prompt + head.output, -1, now_s)


@jitable
def after_idle(w: Loop, i: int, now_s: float) -> None:
    """Offer the slice of instance `i`, which has no work any more, to pending models."""
    inst = w.s.instance[i]
    m = int(inst.model)
    was_draining = inst.draining != 0
    if was_draining:
        return_waiting(w.fleet, w.s, i)
        inst.draining = 0
    if w.s.count[0].pending > 0:
        place_pending(w, inst.chip, now_s)
    if was_draining and serve_pending(w, m):
        place_pending(w, inst.chip, now_s)  # its claim no longer holds others back


@jitable
def after_leaving(w: Loop, i: int, now_s: float) -> None:
    """Offer the room of requests that left instance `i` between its steps to other requests."""
    inst = w.s.instance[i]
    d = inst.on_device
    is_empty = batch_size(w.s, i) == 0 and not holds_on(w.fleet, w.s, i)
    if inst.state == READY and is_empty and (inst.draining != 0 or inst.n_wait == 0):
        inst.state = IDLE
        after_idle(w, i, now_s)
    if w.fleet.hands_directly and w.fleet.role[d] == DECODES:
        carry(w, d, now_s)
    ask(w.s, d)
    for j in range(w.s.device[d].first, w.s.device[d].first + w.fleet.residents):
        if w.s.instance[j].n_wait > 0:
            wake(w, j)


@apart("carried", needed=goes_directly)
def on_carried(w: Loop, slot: int, now_s: float) -> None:
    """Handle the arrival of a KV cache at the instance that decodes its request."""
    req = w.s.request[slot]
    i = int(req.held_by)
    req.held_by = -1
    req.handed_s = now_s
    w.s.inbound[req.instance].come += 1
    leave(w, i, slot)
    wake(w, req.instance)
    after_leaving(w, i, now_s)


@inlined
def _go_on(w: Loop, i: int, now_s: float) -> None:
    # Instance i has ended a load or a step: its device turns to what is next.
    ask(w.s, w.s.instance[i].on_device)
    is_idle = not settle(w, i, now_s)
    if is_idle and (w.s.chip[w.s.instance[i].chip].n_waiting > 0 or w.s.instance[i].draining != 0):
        after_idle(w, i, now_s)


@jitable
def on_ready(w: Loop, d: int, now_s: float) -> None:
    """Handle the end of a load on device `d`: serve the requests that wait for the model."""
    i = int(w.s.plan[d].instance)
    arrived(w.s, entry_of(w.fleet, w.s.instance[i].model, w.s.instance[i].chip))
    _go_on(w, i, now_s)
    if w.fleet.hands_directly and w.fleet.role[d] == DECODES:
        carry(w, d, now_s)


@jitable
def _note_end(rules: Rules, s: Serving, i: int, slot: int, now_s: float) -> None:
    # A request has ended well: tell who chooses variants by how long requests wait.
    req, inst = s.request[slot], s.instance[i]
    latency_s = now_s - req.arrival_s
    alone_s = min(inst.sum_alone_s - req.from_alone_s, latency_s)
    note_end(rules.system.vary, rules.own.vary, inst.chip, latency_s, alone_s)


@inlined
def _end_decodes(w: Loop, i: int, now_s: float) -> None:
    inst = w.s.instance[i]
    kept = 0
    for k in range(inst.n_decode):
        if w.s.decoding[i, k, ENDS_AT] == inst.decode_clock:
            if w.rules.traits.vary.follows_waits:
                _note_end(w.rules, w.s, i, w.s.decoding[i, k, SLOT], now_s)
            finish(w, i, w.s.decoding[i, k, SLOT], now_s)
            continue
        keep_decode(w.s, i, k, kept)
        kept += 1
    inst.n_decode = kept


@inlined
def _end_prefills(w: Loop, i: int, now_s: float) -> None:
    inst = w.s.instance[i]
    kept = 0
    for k in range(inst.n_prefill):
        slot = w.s.prefilling[i, k]
        req = w.s.request[slot]
        if req.step_tokens > 0:
            req.prefilled += req.step_tokens
            inst.backlog -= req.step_tokens
            req.step_tokens = 0
            req.chunks += 1
            if req.held < req.prompt_blocks:
                note_computed(w, i, slot)
        if req.prefilled < req.prompt:
            w.s.prefilling[i, kept] = slot
            kept += 1
            continue
        req.first_token_s = now_s
        req.from_alone_s += inst.sum_alone_s
        if req.output == 1:
            if w.rules.traits.vary.follows_waits:
                _note_end(w.rules, w.s, i, slot, now_s)
            finish(w, i, slot, now_s)
        else:
            append_decode(w.s, i, slot, req.output - 1)
    inst.n_prefill = kept


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
    """Give the requests in the step of device `d` their tokens, and continue."""
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
    _go_on(w, i, now_s)
    if is_given_up:
        _go_elsewhere(w, m, now_s)


@inlined
def on_step_end(w: Loop, d: int, now_s: float) -> None:
    """Handle the end of the reported steps on device `d`: account, control alpha, continue."""
    account_step(w, d)
    if w.fleet.gives_up:
        leave_late(w, d, now_s)
    end_step(w, d, now_s)
