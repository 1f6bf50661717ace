"""Idle instances, and room in instances."""

from __future__ import annotations

import math

from c2c.policies import apart, inlined, jitable
from c2c.serving.batches.handover import carry
from c2c.serving.batches.preemption import clear_for, set_aside
from c2c.serving.batches.queues import return_waiting, take_pending
from c2c.serving.batches.scheduling import is_stuck, preempt
from c2c.serving.batches.turns import settle, wake
from c2c.serving.memory.hbm import holds_on
from c2c.serving.placement import drop_claim, place_pending, try_place
from c2c.serving.request_routing import any_active, has_active, routed
from c2c.serving.tables.actions import ask
from c2c.serving.tables.batch import batch_size
from c2c.serving.tables.roles import DECODES
from c2c.serving.tables.state import IDLE, READY, SLOT, Loop, Rules

__all__ = ["after_idle", "after_leaving", "clear_slice", "go_elsewhere", "go_on", "serve_pending"]


@jitable
def serve_pending(w: Loop, m: int) -> bool:
    """Send model `m`'s pending requests to an active instance, if any."""
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
def clear_slice(w: Loop, m: int, now_s: float) -> None:
    """Let less urgent requests give way for model `m`."""
    i = clear_for(w, m)
    if i >= 0:
        before = int(w.s.instance[i].model)
        set_aside(w, i)
        if not holds_on(w.fleet, w.s, i):
            w.s.instance[i].state = IDLE
            after_idle(w, i, now_s)
        go_elsewhere(w, before, now_s)


@jitable
def go_elsewhere(w: Loop, m: int, now_s: float) -> None:
    """Place model `m` again after its slice's loss."""
    if w.s.model[m].n_wait > 0 and not has_active(w.fleet, w.s, m):
        head = w.s.request[w.s.model[m].wait_head]
        try_place(w, m, head.prompt + head.output, -1, now_s)


@jitable
def after_idle(w: Loop, i: int, now_s: float) -> None:
    """Offer idle instance `i`'s slice to pending models."""
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
    """Offer left room of instance `i` to others."""
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


@jitable
def _newest_stuck(w: Loop, d: int) -> int:
    # If nothing on device d has room for its next step: the engine of the newest request, else -1.
    newest, newest_s = -1, -math.inf
    for i in range(w.s.device[d].first, w.s.device[d].first + w.fleet.residents):
        if batch_size(w.s, i) == 0:
            continue
        if not is_stuck(w, i):
            return -1
        admitted_s = w.s.request[w.s.decoding[i, 0, SLOT]].admitted_s
        if admitted_s > newest_s:
            newest, newest_s = i, admitted_s
    return newest


@apart("free_stuck", needed=lambda values: values[Rules].traits.batch.grows)
def free_stuck(w: Loop, d: int, now_s: float) -> None:
    """Let device `d`'s newest requests yield until an engine can go on."""
    i = _newest_stuck(w, d)
    while i >= 0:
        preempt(w, i, 0)
        after_leaving(w, i, now_s)
        i = _newest_stuck(w, d)


@inlined
def go_on(w: Loop, i: int, now_s: float) -> None:
    """Turn instance `i`'s device, after a load or step, to the next work."""
    ask(w.s, w.s.instance[i].on_device)
    is_idle = not settle(w, i, now_s)
    if is_idle and (w.s.chip[w.s.instance[i].chip].n_waiting > 0 or w.s.instance[i].draining != 0):
        after_idle(w, i, now_s)
    if w.rules.traits.batch.grows and w.fleet.residents > 1:
        free_stuck(w, w.s.instance[i].on_device, now_s)
