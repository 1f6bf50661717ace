"""Queues of request slots."""

from __future__ import annotations

import math

from c2c.policies import inlined, jitable
from c2c.serving.tables.pools import homes_of
from c2c.serving.tables.state import ASSIGNED, COLD, LOADING, NOBODY, SWITCH, WARM, Fleet, Serving

__all__ = [
    "append_pending",
    "append_waiting",
    "end_waiting",
    "pop_waiting",
    "push_waiting",
    "release_slot",
    "return_pending",
    "return_waiting",
    "take_pending",
    "take_slot",
    "unlink",
]


@inlined
def take_slot(s: Serving) -> int:
    """Return a free request slot, which the caller ensures."""
    s.count[0].free_slots -= 1
    return int(s.free_slots[s.count[0].free_slots])


@inlined
def release_slot(s: Serving, slot: int) -> None:
    """Free a request slot."""
    s.request[slot].id = NOBODY
    s.free_slots[s.count[0].free_slots] = slot
    s.count[0].free_slots += 1


@inlined
def _stays_before(s: Serving, slot: int, priority: int, rank: float) -> bool:
    # Whether a request that waits stays before one of this priority and rank that comes.
    req = s.request[slot]
    return bool(req.priority > priority or (req.priority == priority and req.rank <= rank))


@jitable
def _inserted(s: Serving, head: int, slot: int, priority: int, rank: float) -> int:
    # The head of a queue in which `slot` comes after those that stay before this priority and
    # rank, and before the rest, which is not empty.
    if not _stays_before(s, head, priority, rank):
        s.request[slot].next = head
        return slot
    before = head
    while _stays_before(s, s.request[before].next, priority, rank):
        before = int(s.request[before].next)
    s.request[slot].next = s.request[before].next
    s.request[before].next = slot
    return head


@inlined
def append_waiting(s: Serving, i: int, slot: int) -> None:
    """Queue a request at instance `i`, by priority and rank."""
    inst, req = s.instance[i], s.request[slot]
    req.next = -1
    req.instance = i
    if inst.state == LOADING or inst.state == ASSIGNED:
        req.start_kind = COLD if inst.cold != 0 else SWITCH
    else:
        req.start_kind = WARM
    if inst.wait_tail < 0:
        inst.wait_head = slot
        inst.wait_tail = slot
    elif _stays_before(s, inst.wait_tail, req.priority, req.rank):
        s.request[inst.wait_tail].next = slot
        inst.wait_tail = slot
    else:
        inst.wait_head = _inserted(s, inst.wait_head, slot, req.priority, req.rank)
    inst.n_wait += 1
    inst.backlog += req.prompt


@inlined
def pop_waiting(s: Serving, i: int) -> int:
    """Remove and return the head of instance `i`'s queue."""
    inst = s.instance[i]
    slot = int(inst.wait_head)
    inst.wait_head = s.request[slot].next
    if inst.wait_head < 0:
        inst.wait_tail = -1
    inst.n_wait -= 1
    return slot


@jitable
def push_waiting(s: Serving, i: int, slot: int) -> None:
    """Put a request of instance `i` first in its queue."""
    inst, req = s.instance[i], s.request[slot]
    req.next = inst.wait_head
    inst.wait_head = slot
    if inst.wait_tail < 0:
        inst.wait_tail = slot
    inst.n_wait += 1
    inst.backlog += req.prompt


@jitable
def unlink(s: Serving, i: int, before: int, slot: int) -> None:
    """Remove a request from instance `i`'s queue, after `before` or -1."""
    inst, following = s.instance[i], s.request[slot].next
    if before < 0:
        inst.wait_head = following
    else:
        s.request[before].next = following
    if following < 0:
        inst.wait_tail = before
    inst.n_wait -= 1


@jitable
def _begin_waiting(fleet: Fleet, s: Serving, m: int) -> None:
    # Model m, for which nothing waited, is written down on its chips.
    s.model[m].tried = 0
    for k in homes_of(fleet, m):
        c = fleet.home_chip[k]
        s.waiting[fleet.chip_first[c] + s.chip[c].n_waiting] = m
        s.chip[c].n_waiting += 1


@jitable
def end_waiting(fleet: Fleet, s: Serving, m: int) -> None:
    """Remove model `m`, without pending requests, from its chips' lists."""
    for k in homes_of(fleet, m):
        c = fleet.home_chip[k]
        s.chip[c].n_waiting -= 1
        last = fleet.chip_first[c] + s.chip[c].n_waiting
        j = fleet.chip_first[c]
        while s.waiting[j] != m:
            j += 1
        s.waiting[j] = s.waiting[last]


@jitable
def append_pending(fleet: Fleet, s: Serving, m: int, slot: int) -> None:
    """Queue a request of model `m` for a slice, by priority and rank."""
    _queue_pending(fleet, s, m, slot, s.request[slot].rank)


@jitable
def return_pending(fleet: Fleet, s: Serving, m: int, slot: int) -> None:
    """Queue a request of model `m` again, first of its priority."""
    _queue_pending(fleet, s, m, slot, -math.inf)


@jitable
def _queue_pending(fleet: Fleet, s: Serving, m: int, slot: int, rank: float) -> None:
    model, req = s.model[m], s.request[slot]
    if model.n_wait == 0:
        _begin_waiting(fleet, s, m)
    req.next = -1
    req.instance = -1
    if model.wait_tail < 0:
        model.wait_head = slot
        model.wait_tail = slot
    elif _stays_before(s, model.wait_tail, req.priority, rank):
        s.request[model.wait_tail].next = slot
        model.wait_tail = slot
    else:
        model.wait_head = _inserted(s, model.wait_head, slot, req.priority, rank)
    model.oldest_s = s.request[model.wait_head].arrival_s
    model.n_wait += 1
    s.count[0].pending += 1


@jitable
def take_pending(fleet: Fleet, s: Serving, m: int, i: int) -> None:
    """Move model `m`'s fitting pending requests to instance `i`."""
    model = s.model[m]
    if model.n_wait == 0:
        return
    end_waiting(fleet, s, m)
    capacity = s.instance[i].kv_capacity
    slot = int(model.wait_head)
    model.wait_head = -1
    model.wait_tail = -1
    s.count[0].pending -= model.n_wait
    model.n_wait = 0
    while slot >= 0:
        following = int(s.request[slot].next)
        if s.request[slot].prompt + s.request[slot].output <= capacity:
            append_waiting(s, i, slot)
        else:
            append_pending(fleet, s, m, slot)
        slot = following


@jitable
def return_waiting(fleet: Fleet, s: Serving, i: int) -> None:
    """Put instance `i`'s queue ahead of later pending requests."""
    inst = s.instance[i]
    if inst.n_wait == 0:
        return
    m = int(inst.model)
    model = s.model[m]
    if model.n_wait == 0:
        _begin_waiting(fleet, s, m)
    later = int(model.wait_head)
    last = int(inst.wait_tail)
    head = s.request[later]
    if later >= 0 and _stays_before(s, last, head.priority, head.rank):
        s.request[last].next = later
        later = -1
    else:
        s.count[0].pending -= model.n_wait
        model.n_wait = 0
        model.wait_tail = last
    model.wait_head = inst.wait_head
    model.oldest_s = s.request[inst.wait_head].arrival_s
    model.n_wait += inst.n_wait
    s.count[0].pending += inst.n_wait
    slot = int(inst.wait_head)
    for _ in range(inst.n_wait):
        inst.backlog -= s.request[slot].prompt
        s.request[slot].instance = -1
        slot = int(s.request[slot].next)
    while later >= 0:
        following = int(s.request[later].next)
        append_pending(fleet, s, m, later)
        later = following
    inst.wait_head = -1
    inst.wait_tail = -1
    inst.n_wait = 0
