"""Turns: choice of a device's next engine."""

from __future__ import annotations

import math
from typing import Final

from c2c.policies import (
    apart,
    given_up_s,
    inlined,
    joins,
    token_due_s,
    turn_taken,
    urgency,
)
from c2c.serving.batches.batching import compose
from c2c.serving.batches.handover import has_prompt_done
from c2c.serving.batches.instances import make_room_for
from c2c.serving.batches.moments import before_launches, before_run
from c2c.serving.batches.schedulers.reserved import joins_reserved
from c2c.serving.batches.scheduling import is_stuck
from c2c.serving.memory.hbm import (
    could_hold,
    holds_on,
    kept_share,
    left_of_stay_s,
    pair_of,
)
from c2c.serving.tables.actions import ACT_INTERRUPT, ACT_LOAD, ask, emit, is_new_run
from c2c.serving.tables.batch import batch_size, generated, outstanding
from c2c.serving.tables.state import (
    ASSIGNED,
    FREE,
    IDLE,
    LOADING,
    READY,
    RUNNING,
    SLOT,
    Fleet,
    Loop,
    Rules,
    Serving,
)

__all__ = ["begin_load", "has_work", "settle", "start_asked", "wake"]

_UNLIMITED: Final = 1 << 60  # decode steps of a run that nothing else waits for


@inlined
def _head_joins(w: Loop, i: int) -> bool:
    # Whether the first waiting request could join the batch of instance i now.
    inst = w.s.instance[i]
    if inst.n_wait == 0 or inst.draining != 0:
        return False
    if w.fleet.hands_directly and has_prompt_done(w.s, inst.wait_head):
        return bool(w.s.inbound[i].come > 0)
    if w.rules.traits.batch.is_default:
        return joins_reserved(w, i)
    return bool(joins(w.rules.system.batch, w, i))


@inlined
def _could_begin(w: Loop, i: int) -> bool:
    # Whether instance i, with nothing in its batch, could load its model or admit a request.
    inst = w.s.instance[i]
    if inst.state == FREE or inst.state == LOADING:
        return False
    if inst.state == ASSIGNED:
        return could_hold(w.fleet, w.s, i, 0.0)  # there is room for it
    return _head_joins(w, i)


@inlined
def has_work(w: Loop, i: int) -> bool:
    """Return whether instance `i` has work for a turn."""
    inst = w.s.instance[i]
    if batch_size(w.s, i) > 0:
        return True
    starts = inst.ahead != 0 and inst.state == ASSIGNED
    return bool(inst.n_wait > 0 or starts) and _could_begin(w, i)


@inlined
def begin_load(w: Loop, i: int) -> None:
    """Let instance `i`'s device, with room, load its model."""
    d = w.s.instance[i].on_device
    plan = w.s.plan[d]
    w.s.instance[i].state = LOADING
    w.s.instance[i].ahead = 0
    plan.instance = i
    plan.link_gbps = 0.0
    plan.steps = 1
    w.s.device[d].running = i
    w.s.device[d].last = i
    emit(w.s, ACT_LOAD, d)


@inlined
def _load(w: Loop, i: int, now_s: float) -> None:
    inst = w.s.instance[i]
    plan = w.s.plan[inst.on_device]
    plan.kv_in_bytes, plan.kv_out_bytes = 0.0, 0.0
    make_room_for(w, i, 0.0, now_s)
    begin_load(w, i)


@inlined
def _launch(w: Loop, i: int, most: int, now_s: float) -> None:
    if w.s.instance[i].state == ASSIGNED:
        _load(w, i, now_s)
    else:
        compose(w, i, most, now_s)
    before_run(w, i)


@inlined
def _watch_prompts(w: Loop, i: int, e: int) -> None:
    # Earliest TTFT target of the prompts that instance i could work on, less what they still take.
    inst, row = w.s.instance[i], w.s.engines[e]
    pair = pair_of(w.fleet, w.s, i)
    ttft_s = w.fleet.deployment[inst.model].ttft_slo_s
    row.has_prompt = 0
    row.prompt_due_s = math.inf
    row.prompt_since_s = math.inf
    for k in range(inst.n_prefill):
        req = w.s.request[w.s.prefilling[i, k]]
        left_s = (req.prompt - req.prefilled) * w.fleet.costs.prompt_s[pair]
        row.prompt_due_s = min(row.prompt_due_s, req.arrival_s + ttft_s - left_s)
        row.prompt_since_s = min(row.prompt_since_s, req.arrival_s)
        row.has_prompt = 1
    is_new = inst.n_wait > 0 and not has_prompt_done(w.s, inst.wait_head)
    if is_new and (inst.state == ASSIGNED or _head_joins(w, i)):
        req = w.s.request[inst.wait_head]
        left_s = req.prompt * w.fleet.costs.prompt_s[pair]
        row.prompt_due_s = min(row.prompt_due_s, req.arrival_s + ttft_s - left_s)
        row.has_prompt = 1
        row.prompt_since_s = min(row.prompt_since_s, req.arrival_s)
    row.prompt_due_s -= w.fleet.costs.decode_s[pair]


@inlined
def _look_at_lines(rules: Rules, s: Serving, i: int, tpot_s: float, now_s: float) -> None:
    # Notes the earliest due token of instance i, how many sequences are kept up and until when.
    inst = s.instance[i]
    inst.looked_at = inst.n_decode
    inst.kept_up = 0
    inst.line_due_s = math.inf
    inst.line_until_s = math.inf
    for k in range(inst.n_decode):
        req = s.request[s.decoding[i, k, SLOT]]
        tokens = generated(s, i, k)
        until_s = given_up_s(rules.system.turn, req.first_token_s, tokens, tpot_s)
        if now_s > until_s:
            continue
        due_s = token_due_s(rules.system.turn, req.first_token_s, tokens, inst.last_token_s, tpot_s)
        inst.kept_up += 1
        inst.line_due_s = min(inst.line_due_s, due_s)
        inst.line_until_s = min(inst.line_until_s, until_s)


@inlined
def _kept_up(w: Loop, i: int, now_s: float) -> int:
    # How many sequences of instance i are not given up.
    inst = w.s.instance[i]
    n = inst.n_wait + inst.n_prefill
    if not w.rules.traits.turn.reads_token_lines:
        return int(n)
    if inst.looked_at != inst.n_decode or now_s > inst.line_until_s:
        _look_at_lines(w.rules, w.s, i, w.fleet.deployment[inst.model].tpot_slo_s, now_s)
    return int(n + inst.kept_up)


@inlined
def _watch_decodes(w: Loop, i: int, e: int) -> None:
    # Earliest due token of instance i, less a step, and what its decodes take.
    inst, row = w.s.instance[i], w.s.engines[e]
    pair, n, costs = pair_of(w.fleet, w.s, i), inst.n_decode, w.fleet.costs
    row.token_due_s = math.inf
    if w.rules.traits.turn.reads_token_lines:
        row.token_due_s = inst.line_due_s - costs.decode_s[pair]
    row.last_token_s = inst.last_token_s
    if inst.n_wait > 0 and has_prompt_done(w.s, inst.wait_head):
        joins = w.s.inbound[i].come if w.fleet.hands_directly else inst.n_wait  # with its turn
        n = min(n + joins, w.fleet.max_batch)
    row.decodes = n
    row.decode_clock = inst.decode_clock
    row.tpot_slo_s = w.fleet.deployment[inst.model].tpot_slo_s
    row.switch_s = w.fleet.switch_s[w.fleet.deployment[inst.model].arch, inst.kind]
    row.weight_bytes = w.fleet.weight_bytes[inst.model]
    rows = n * (1 + costs.verified[pair])
    row.step_s = costs.body_s[pair, rows, 0] + costs.head_s[pair, rows, 0] + costs.overhead_s[pair]
    row.step_s *= costs.passes[pair]
    row.step_s += costs.decode_read_s[pair] * inst.kv_used + costs.decode_attention_s[pair, n]
    row.kept_share = kept_share(w.fleet, w.s, i)


@inlined
def _streamed_gbps(fleet: Fleet, s: Serving, i: int) -> float:
    # The link rate that decoding on instance i within its target takes; kept layers take none.
    demand_gbps = fleet.deployment[s.instance[i].model].demand_gbps
    return float(demand_gbps * (1.0 - kept_share(fleet, s, i)))


@inlined
def _watch(w: Loop, d: int, of_chip: bool, now_s: float) -> None:
    # Fills a row of s.engines for every instance of device d, or of its chip, that has requests,
    # and protects those of the chip that serve most requests a byte streamed, up to the policy's
    # share of the link.
    chip = w.s.chip[w.s.device[d].chip]
    first = w.s.device[chip.first].first
    share = w.rules.traits.turn.protected_share
    is_brief = w.rules.traits.turn.goes_by_order
    n, begin, end = 0, w.s.device[d].first, w.s.device[d].first + w.fleet.residents
    stayed_on, stays_s = -1, 0.0
    if of_chip or share > 0.0:
        begin, end = first, first + (chip.last - chip.first) * w.fleet.residents
    for i in range(begin, end):
        inst = w.s.instance[i]
        row = w.s.engines[i - first]
        row.instance = -1
        row.is_protected = 0
        if inst.state == FREE or (outstanding(w.s, i) == 0 and inst.ahead == 0):
            continue
        row.instance = i
        last = w.s.device[inst.on_device].last
        row.order = (i - last - 1) % w.fleet.residents if last >= 0 else 0
        if is_brief:
            continue
        kept_up = _kept_up(w, i, now_s)
        if w.s.device[inst.on_device].running < 0:  # else nobody asks how urgent it is
            row.is_last = 1 if i == last else 0
            if stayed_on != inst.on_device:
                stayed_on = inst.on_device
                stays_s = left_of_stay_s(w, stayed_on, now_s)
            row.stays_s = stays_s
            _watch_prompts(w, i, i - first)
            _watch_decodes(w, i, i - first)
        if share > 0.0 and kept_up > 0:
            demand = _streamed_gbps(w.fleet, w.s, i)
            if demand == 0.0:
                row.is_protected = 1  # it draws nothing from the link
                continue
            value = kept_up / max(demand, 1e-9)
            k = n
            while k > 0 and w.s.ranked[k - 1, 0] < value:
                w.s.ranked[k, 0] = w.s.ranked[k - 1, 0]
                w.s.ranked[k, 1] = w.s.ranked[k - 1, 1]
                k -= 1
            w.s.ranked[k, 0] = value
            w.s.ranked[k, 1] = i
            n += 1
    rest_gbps = share * chip.link_gbps
    for k in range(n):
        i = int(w.s.ranked[k, 1])
        demand = _streamed_gbps(w.fleet, w.s, i)
        if demand <= rest_gbps:
            rest_gbps -= demand
            w.s.engines[i - first].is_protected = 1
    if share > 0.0:
        _watch_others(w.fleet, w.s, begin, end, chip.link_gbps)


@inlined
def _watch_others(fleet: Fleet, s: Serving, first: int, end: int, link_gbps: float) -> None:
    # Adds to the chip's rows how long its link takes for a step of each engine not protected.
    round_s = 0.0
    for i in range(first, end):
        row = s.engines[i - first]
        if row.instance >= 0 and row.is_protected == 0 and s.instance[i].n_decode > 0:
            tpot_s = fleet.deployment[s.instance[i].model].tpot_slo_s
            round_s += _streamed_gbps(fleet, s, i) * tpot_s / link_gbps
    for k in range(end - first):
        s.engines[k].round_s = round_s


@inlined
def _drawn_gbps(s: Serving, c: int) -> float:
    # What the steps under way on chip c demand of its link.
    total = 0.0
    for d in range(s.chip[c].first, s.chip[c].last):
        if s.device[d].running >= 0:
            total += s.plan[d].link_gbps
    return total


@inlined
def _most_urgent(w: Loop, d: int, now_s: float) -> tuple[int, float, int]:
    # The engine that device d turns to (or -1), its urgency, and how many have work.
    dev = w.s.device[d]
    first = w.s.device[w.s.chip[dev.chip].first].first
    best, best_urgency, n = -1, 0.0, 0
    for i in range(dev.first, dev.first + w.fleet.residents):
        if w.s.engines[i - first].instance < 0 or not has_work(w, i):
            continue
        if w.rules.traits.batch.grows and is_stuck(w, i):
            continue
        n += 1
        u = urgency(w.rules.system.turn, w.rules.own.turn, w.s.engines[i - first], now_s)
        if best < 0 or u < best_urgency:
            best, best_urgency = i, u
    return best, best_urgency, n


@inlined
def _hold(s: Serving, d: int) -> None:
    if s.device[d].is_held == 0:
        s.device[d].is_held = 1
        s.chip[s.device[d].chip].n_held += 1


@inlined
def _release(s: Serving, d: int) -> None:
    if s.device[d].is_held != 0:
        s.device[d].is_held = 0
        s.chip[s.device[d].chip].n_held -= 1


@inlined
def _end_runs(s: Serving, c: int, limit_gbps: float) -> None:
    # Runs of several steps end at the next step if something waits, or would not start now.
    drawn = _drawn_gbps(s, c)
    for d in range(s.chip[c].first, s.chip[c].last):
        running = s.device[d].running
        if running < 0 or s.instance[running].state != RUNNING or s.plan[d].steps == 1:
            continue
        if s.chip[c].n_held > 0 or drawn - s.plan[d].link_gbps >= limit_gbps:
            s.plan[d].steps = 1
            if not is_new_run(s, d):
                emit(s, ACT_INTERRUPT, d)


@inlined
def _next_of_chip(
    w: Loop, c: int, now_s: float
) -> tuple[int, int]:  # fmt: skip
    # Prompts start at once; then, most urgent first, what else the link has room for.
    chip = w.s.chip[c]
    limit = w.rules.traits.turn.link_gate * chip.link_gbps
    first = w.s.device[chip.first].first
    best_d, best_i, best_n, best_urgency = -1, -1, 0, 0.0
    drawn = _drawn_gbps(w.s, c)
    for d in range(chip.first, chip.last):
        if w.s.device[d].running >= 0:
            continue
        i, u, n = _most_urgent(w, d, now_s)
        if i < 0:
            _release(w.s, d)
            continue
        row = w.s.engines[i - first]
        inst = w.s.instance[i]
        streams = inst.kept < w.fleet.layers[w.fleet.deployment[inst.model].arch]
        if row.has_prompt == 0 and streams and drawn >= limit:
            _hold(w.s, d)
            continue
        if best_d < 0 or u < best_urgency:
            best_d, best_i, best_n, best_urgency = d, i, n, u
    if best_d < 0:
        _end_runs(w.s, c, limit)
        return -1, 0
    _release(w.s, best_d)
    is_alone = best_n == 1 and chip.n_held == 0 and drawn < limit
    return best_i, _UNLIMITED if is_alone else 1


@apart("turns", needed=lambda values: values[Rules].traits.turn.takes_turns)
def _next_turn(
    w: Loop, d: int, nth: int, now_s: float
) -> tuple[int, int]:  # fmt: skip
    # The nth engine that begins now for what has happened on device d, or -1, and its most steps.
    c = w.s.device[d].chip
    if w.rules.traits.turn.link_gate < math.inf:
        if nth == 0:
            if w.s.chip[c].started == w.s.count[0].events:
                return -1, 0
            w.s.chip[c].started = w.s.count[0].events
            _watch(w, d, True, now_s)
        return _next_of_chip(w, c, now_s)
    if nth > 0 or w.s.device[d].running >= 0:
        return -1, 0
    _watch(w, d, False, now_s)
    i, _, n = _most_urgent(w, d, now_s)
    if i < 0:
        return -1, 0
    first = w.s.device[d].first - w.s.device[w.s.chip[c].first].first
    row = w.s.engines[first + i - w.s.device[d].first]
    steps = turn_taken(
        w.rules.system.turn, w.rules.own.turn, w.s.engines, first, w.fleet.residents, row, now_s
    )
    return i, _UNLIMITED if n == 1 else max(1, int(steps))


@inlined
def _next_engine(
    w: Loop, d: int, nth: int, now_s: float
) -> tuple[int, int]:  # fmt: skip
    # The nth engine that begins now on device d, or -1, and its most steps.
    if w.rules.traits.turn.takes_turns:
        i, most = _next_turn(w, d, nth, now_s)
        return i, most
    i = w.s.device[d].first
    if nth > 0 or w.s.device[d].running >= 0 or not has_work(w, i):
        return -1, 0
    return i, _UNLIMITED


@inlined
def _start(w: Loop, d: int, now_s: float) -> None:
    i, nth = 0, 0
    while i >= 0:
        i, most = _next_engine(w, d, nth, now_s)
        if i >= 0:  # in one place: a launch becomes part of the loop, and a fifth of its code
            _launch(w, i, most, now_s)
        nth += 1


@inlined
def start_asked(w: Loop, now_s: float) -> None:
    """Start work on marked devices, last in every step."""
    before_launches(w)
    k = 0
    while k < w.s.count[0].asked:  # a start may ask others
        d = w.s.asked[k % len(w.s.asked)]
        w.s.device[d].is_asked = 0
        _start(w, d, now_s)
        k += 1
    w.s.count[0].asked = 0
    w.s.count[0].events += 1


@inlined
def wake(w: Loop, i: int) -> None:
    """Start instance `i`, or end its decodes for new requests."""
    inst = w.s.instance[i]
    if inst.state == IDLE:
        inst.state = READY
    d = inst.on_device
    running = w.s.device[d].running
    if running < 0:
        ask(w.s, d)
    elif (
        w.s.instance[running].state == RUNNING
        and w.s.plan[d].steps > 1
        and (inst.state == ASSIGNED or _head_joins(w, i))
    ):
        emit(w.s, ACT_INTERRUPT, d)


@inlined
def settle(w: Loop, i: int, now_s: float) -> bool:
    """Take instance `i` off its device after a load or a step; return True if needed."""
    inst = w.s.instance[i]
    w.s.device[inst.on_device].running = -1
    inst.last_used_s = now_s
    inst.state = READY
    if has_work(w, i) or (inst.draining == 0 and inst.n_wait > 0):
        return True
    if holds_on(w.fleet, w.s, i):
        return True
    inst.state = IDLE
    return False
