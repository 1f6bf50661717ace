"""Rebalancing over batches on the same devices."""

from __future__ import annotations

from c2c.policies import apart, jitable
from c2c.serving.batches.handover import send
from c2c.serving.batches.queues import append_waiting, pop_waiting
from c2c.serving.batches.records import leave
from c2c.serving.batches.turns import wake
from c2c.serving.request_routing import routed
from c2c.serving.tables.batch import (
    batch_size,
    generated,
    outstanding,
    remove_decode,
    remove_prompt,
)
from c2c.serving.tables.state import SLOT, Fleet, Loop, Rules, Serving

__all__ = ["deal", "route_waiting"]


@jitable
def _has_room(fleet: Fleet, s: Serving, j: int, slot: int) -> bool:
    # Whether a request joins instance j at its next step, with all that waits there.
    other, req = s.instance[j], s.request[slot]
    tokens = other.kv_used + req.prompt + req.output
    waits = int(other.wait_head)
    while waits >= 0:
        tokens += s.request[waits].prompt + s.request[waits].output
        waits = int(s.request[waits].next)
    return bool(outstanding(s, j) < fleet.max_batch and tokens <= other.kv_capacity)


@jitable
def _taker(w: Loop, i: int, slot: int) -> int:
    # The other batch on the same devices that the route now says; -1: the request stays.
    inst = w.s.instance[i]
    j = routed(w, inst.model, slot, False)
    if j < 0 or j == i:
        return -1
    other = w.s.instance[j]
    is_beside = other.chip == inst.chip and other.kind == inst.kind
    return j if is_beside and batch_size(w.s, j) > 0 and _has_room(w.fleet, w.s, j, slot) else -1


@jitable
def _go(w: Loop, i: int, slot: int, j: int, n_output: int, now_s: float) -> None:
    # A request that stands in no batch any more waits at instance j, to go on where it was.
    if n_output > 0:
        send(w, i, slot, n_output, j, False, now_s)
        return
    req = w.s.request[slot]
    leave(w, i, slot)
    start_kind = req.start_kind
    append_waiting(w.s, j, slot)
    req.start_kind = start_kind
    w.s.instance[i].backlog -= req.prompt


# These batches can read one another's KV caches, so nothing is copied. Batches are merged, never
# split: two halves read all weights twice, and later requests join the emptier batch in any case.
@apart("deal", needed=lambda values: values[Rules].traits.vary.follows_waits)
def deal(w: Loop, i: int, now_s: float) -> None:
    """Route instance `i`'s requests again at a step boundary, youngest first."""
    inst = w.s.instance[i]
    inst.deals = 0
    for k in range(inst.n_prefill - 1, -1, -1):
        slot = w.s.prefilling[i, k]
        if w.s.request[slot].prefilled > 0:
            inst.deals = 1
            continue
        j = _taker(w, i, slot)
        if j >= 0:
            _go(w, i, slot, j, 0, now_s)
            remove_prompt(w.s, i, k)
    for k in range(inst.n_decode - 1, -1, -1):
        slot = w.s.decoding[i, k, SLOT]
        j = _taker(w, i, slot)
        if j >= 0:
            _go(w, i, slot, j, generated(w.s, i, k), now_s)
            remove_decode(w.s, i, k)
    chip = w.s.chip[inst.chip]
    for d in range(chip.first, chip.last):
        j = w.s.device[d].first
        if j != i and w.s.device[d].kind == inst.kind and w.s.instance[j].n_wait > 0:
            wake(w, j)


@jitable
def route_waiting(w: Loop, i: int) -> None:
    """Route instance `i`'s waiting requests beside opened ones."""
    inst = w.s.instance[i]
    for _ in range(inst.n_wait):
        slot = pop_waiting(w.s, i)
        start_kind = w.s.request[slot].start_kind
        inst.backlog -= w.s.request[slot].prompt
        j = routed(w, inst.model, slot, False)
        append_waiting(w.s, j if j >= 0 else i, slot)
        w.s.request[slot].start_kind = start_kind
        if j >= 0 and j != i:
            wake(w, j)
