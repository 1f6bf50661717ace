"""Preemption by more urgent requests (C2CServe section 6.1)."""

from __future__ import annotations

from c2c.policies import inlined, jitable
from c2c.serving.batches.queues import return_pending, return_waiting
from c2c.serving.batches.records import leave
from c2c.serving.tables.actions import ACT_ASIDE, ACT_INTERRUPT, emit
from c2c.serving.tables.batch import batch_size, generated, member
from c2c.serving.tables.charges import charge
from c2c.serving.tables.pools import could_hold_weights, entry_of, homes_of, instances_of
from c2c.serving.tables.roles import DECODES
from c2c.serving.tables.state import READY, RUNNING, SLOT, Fleet, Loop, Serving

__all__ = ["clear_for", "is_cleared", "set_aside", "start_over"]


@jitable
def start_over(s: Serving, slot: int, n_output: int) -> None:
    """Queue a request without instance again, with `n_output` tokens generated."""
    req = s.request[slot]
    if req.prefilled > req.reused:
        charge(s, slot, n_output > 0)
        req.again += 1
    if n_output > 0:
        if req.carried == 0:
            req.was_admitted_s = req.admitted_s
            req.was_started_s = req.started_s
            req.was_first_token_s = req.first_token_s
        req.carried += n_output
        req.prompt += n_output
        req.output -= n_output
    req.prefilled = 0
    req.reused = 0
    req.step_tokens = 0


@jitable
def _put_aside(w: Loop, i: int, slot: int, n_output: int) -> None:
    req = w.s.request[slot]
    m = int(req.model)
    leave(w, i, slot)
    start_over(w.s, slot, n_output)
    emit(w.s, ACT_ASIDE, req.id)
    w.s.count[0].preempted += 1
    return_pending(w.fleet, w.s, m, slot)


@jitable
def set_aside(w: Loop, i: int) -> None:
    """Return idle instance `i`'s requests to their queue."""
    inst = w.s.instance[i]
    inst.aside = 0
    return_waiting(w.fleet, w.s, i)
    for k in range(inst.n_prefill - 1, -1, -1):
        slot = w.s.prefilling[i, k]
        inst.backlog -= w.s.request[slot].prompt - w.s.request[slot].prefilled
        _put_aside(w, i, slot, 0)
    for k in range(inst.n_decode - 1, -1, -1):
        _put_aside(w, i, w.s.decoding[i, k, SLOT], generated(w.s, i, k))
    inst.n_prefill = 0
    inst.n_decode = 0


@inlined
def is_cleared(s: Serving, i: int) -> bool:
    """Return whether instance `i` must release its requests at a step boundary."""
    return bool(s.instance[i].aside != 0)


@jitable
def _is_below(s: Serving, i: int, priority: int) -> bool:
    # Whether every request of instance i is less urgent.
    inst = s.instance[i]
    for k in range(batch_size(s, i)):
        if s.request[member(s, i, k)].priority >= priority:
            return False
    slot = int(inst.wait_head)
    while slot >= 0:
        if s.request[slot].priority >= priority:
            return False
        slot = int(s.request[slot].next)
    return True


@jitable
def _least_to_redo(fleet: Fleet, s: Serving, m: int, c: int, best: int) -> int:
    # Of the instances of chip c that less urgent requests hold, and of `best`, the one with least.
    head = s.request[s.model[m].wait_head]
    if s.chip[c].claim >= 0 or not could_hold_weights(fleet, s, entry_of(fleet, m, c), m):
        return best
    arch = fleet.deployment[m].arch
    first, last = instances_of(fleet, s, c)
    for i in range(first, last):
        inst = s.instance[i]
        if inst.draining != 0 or inst.model == m or fleet.role[inst.on_device] == DECODES:
            continue
        if inst.state != RUNNING and inst.state != READY:
            continue
        if fleet.kv_capacity[arch, inst.kind] < head.prompt + head.output:
            continue
        if best >= 0 and inst.kv_used >= s.instance[best].kv_used:
            continue
        if _is_below(s, i, head.priority):
            best = i
    return best


@jitable
def clear_for(w: Loop, m: int) -> int:
    """Clear an instance, at a step boundary, of requests less urgent than `m`'s."""
    if not w.rules.traits.preempt.sets_aside or w.s.model[m].claim_chip >= 0:
        return -1
    best = -1
    for k in homes_of(w.fleet, m):
        best = _least_to_redo(w.fleet, w.s, m, w.fleet.home_chip[k], best)
    if best < 0:
        return -1
    inst = w.s.instance[best]
    inst.draining = 1
    inst.aside = 1
    w.s.count[0].drains += 1
    w.s.chip[inst.chip].claim = m
    w.s.model[m].claim_chip = inst.chip
    if inst.state == READY:
        return best
    if w.s.plan[inst.on_device].steps > 1:
        emit(w.s, ACT_INTERRUPT, inst.on_device)
    return -1
