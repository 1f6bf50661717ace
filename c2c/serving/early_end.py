"""Early ends of requests."""

from __future__ import annotations

import math

from c2c.policies import apart, jitable
from c2c.serving.batches.handover import has_prompt_done, let_go
from c2c.serving.batches.instances import take_back_start
from c2c.serving.batches.moments import at_timer
from c2c.serving.batches.queues import end_waiting, unlink
from c2c.serving.batches.records import fail, write_record
from c2c.serving.batches.timers import set_timer
from c2c.serving.placement import drop_claim, place_pending, try_place
from c2c.serving.step_report import end_in_batch, gives_up
from c2c.serving.tables.actions import ACT_FORGET, ACT_INTERRUPT, emit
from c2c.serving.tables.batch import batch_size, member, place_among_decodes
from c2c.serving.tables.charges import keep_charge
from c2c.serving.tables.state import (
    ASSIGNED,
    FAIL_NONE,
    NOBODY,
    RUNNING,
    Loop,
    Serving,
)
from c2c.serving.vacancy import after_leaving, serve_pending

__all__ = [
    "earliest_deadline_s",
    "end_request",
    "expire",
    "fail_unserved",
    "give_up",
    "on_due",
    "place_again",
    "slot_of",
]


@jitable
def slot_of(s: Serving, request_id: int) -> int:
    """Return an open request's slot, or -1."""
    for slot in range(len(s.request)):
        if s.request[slot].id == request_id:
            return slot
    return -1


@jitable
def earliest_deadline_s(s: Serving) -> float:
    """Return the next deadline's time; inf: there is none."""
    first_s = math.inf
    for slot in range(len(s.request)):
        req = s.request[slot]
        if req.id != NOBODY and req.ending == FAIL_NONE:
            first_s = min(first_s, req.ends_by_s)
    return first_s


@jitable
def _first_late(s: Serving, now_s: float, also_now: bool) -> int:
    # Of the requests whose deadline has passed, the one that came first, or -1.
    first = -1
    for slot in range(len(s.request)):
        req = s.request[slot]
        is_late = req.ends_by_s <= now_s if also_now else req.ends_by_s < now_s
        if not is_late or req.id == NOBODY or req.ending != FAIL_NONE:
            continue
        other = s.request[max(first, 0)]
        is_first = req.arrival_s < other.arrival_s or (
            req.arrival_s == other.arrival_s and req.id < other.id
        )
        if first < 0 or is_first:
            first = slot
    return first


@jitable
def expire(w: Loop, now_s: float, also_now: bool) -> None:
    """End requests past their deadline, in order of arrival."""
    if now_s < w.s.timer_s[0]:
        return  # it stands at the next deadline, or before it
    slot = _first_late(w.s, now_s, also_now)
    while slot >= 0:
        end_request(w, slot, int(w.s.request[slot].late_as), now_s)
        slot = _first_late(w.s, now_s, also_now)


@apart("give_up", needed=gives_up)
def give_up(w: Loop, now_s: float) -> None:
    """End requests past their deadline; set timer 0 to the next."""
    if w.s.count[0].deadlines == 0:  # an option's timer alone: nobody is looked for
        set_timer(w.s, 0, math.inf)
        return
    expire(w, now_s, True)
    set_timer(w.s, 0, earliest_deadline_s(w.s))


@jitable
def on_due(w: Loop, now_s: float) -> None:
    """Handle timer 0: deadlines, and the option's."""
    give_up(w, now_s)
    at_timer(w, now_s)


@jitable
def fail_unserved(s: Serving, slot: int, now_s: float, reason: int) -> None:
    """End a request without instance; its record counts generated tokens."""
    s.request[slot].output = s.request[slot].made
    fail(s, slot, now_s, reason)


@jitable
def _is_in_step(s: Serving, slot: int) -> bool:
    req = s.request[slot]
    inst = s.instance[req.instance]
    if inst.state != RUNNING:
        return False
    has_decodes = s.plan[inst.on_device].decodes > 0
    return bool(req.step_tokens > 0) or (
        has_decodes and place_among_decodes(s, req.instance, slot) >= 0
    )


@jitable
def _is_in_batch(s: Serving, i: int, slot: int) -> bool:
    for k in range(batch_size(s, i)):  # noqa: SIM110 (a generator is nothing that Numba compiles)
        if member(s, i, k) == slot:
            return True
    return False


# A request in the step under way ends with that step, all others at once.
@jitable
def end_request(w: Loop, slot: int, reason: int, now_s: float) -> None:
    """End a request for a reason, wherever it is."""
    req = w.s.request[slot]
    i = int(req.instance)
    if i < 0:
        _end_pending(w, slot, reason, now_s)
        return
    inst = w.s.instance[i]
    if _is_in_step(w.s, slot):
        if req.ending == FAIL_NONE:
            req.ending = reason
        if w.s.plan[inst.on_device].steps > 1:
            emit(w.s, ACT_INTERRUPT, inst.on_device)
        return
    if _is_in_batch(w.s, i, slot):
        req.ending = reason
        emit(w.s, ACT_FORGET, req.id)
        end_in_batch(w, slot, now_s)
    else:
        unlink(w.s, i, _before(w.s, int(inst.wait_head), slot)[0], slot)
        if has_prompt_done(w.s, slot):
            _end_handed(w, slot, reason, now_s)
        else:
            inst.backlog -= req.prompt
            fail_unserved(w.s, slot, now_s, reason)
    _after_leaving(w, i, now_s)


@jitable
def _end_handed(w: Loop, slot: int, reason: int, now_s: float) -> None:
    # A request with its first tokens and its KV cache, that waits to be decoded.
    req = w.s.request[slot]
    source = int(req.held_by)
    emit(w.s, ACT_FORGET, req.id)
    let_go(w, slot)
    keep_charge(w.s, slot)
    req.output = req.made
    w.s.count[0].failed += 1
    write_record(w.s, slot, now_s, reason)
    if source >= 0:
        after_leaving(w, source, now_s)


@jitable
def _before(s: Serving, head: int, slot: int) -> tuple[int, bool]:
    # The slot before this one in its queue, or -1, and whether this one is the last.
    before, here = -1, head
    while here != slot:
        before, here = here, int(s.request[here].next)
    return before, bool(s.request[slot].next < 0)


@jitable
def _after_leaving(w: Loop, i: int, now_s: float) -> None:
    # A request that no step computes has left instance i: what it held may serve others.
    inst = w.s.instance[i]
    if inst.state == ASSIGNED and inst.n_wait == 0:
        # Nothing was loaded yet, and nothing needs it any more.
        take_back_start(w.fleet, w.s, i, now_s)
        place_pending(w, inst.chip, now_s)
    after_leaving(w, i, now_s)


@jitable
def _end_pending(w: Loop, slot: int, reason: int, now_s: float) -> None:
    m = int(w.s.request[slot].model)
    model = w.s.model[m]
    before, last = _before(w.s, int(model.wait_head), slot)
    following = int(w.s.request[slot].next)
    if before < 0:
        model.wait_head = following
    else:
        w.s.request[before].next = following
    model.wait_tail = before if last else model.wait_tail
    model.n_wait -= 1
    w.s.count[0].pending -= 1
    if model.n_wait == 0:
        end_waiting(w.fleet, w.s, m)
    fail_unserved(w.s, slot, now_s, reason)
    if before < 0:
        place_again(w, m, now_s)


@jitable
def place_again(w: Loop, m: int, now_s: float) -> None:
    """Ask for a slice for model `m` again, with a new head of its queue."""
    model = w.s.model[m]
    claimed = int(model.claim_chip)
    if model.n_wait == 0:
        drop_claim(w.s, m)
    else:
        head = w.s.request[model.wait_head]
        model.oldest_s = head.arrival_s
        if not serve_pending(w, m):
            try_place(w, m, head.prompt + head.output, -1, now_s)
    if claimed >= 0 and model.claim_chip < 0:
        place_pending(w, claimed, now_s)  # the claim held others back
