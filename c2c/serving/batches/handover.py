"""Handover of requests from prompt to decode instances."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from c2c.policies import apart, inlined, jitable, may_join
from c2c.serving.batches.instances import make_room_for
from c2c.serving.batches.preemption import start_over
from c2c.serving.batches.queues import append_waiting, unlink
from c2c.serving.batches.records import leave, release_kv
from c2c.serving.memory.hbm import (
    place_bytes,
    quota_bytes,
    request_bytes,
    request_places,
    room_bytes,
)
from c2c.serving.tables.actions import ACT_HAND, ask, emit
from c2c.serving.tables.batch import batch_size
from c2c.serving.tables.charges import charge, keep_charge
from c2c.serving.tables.state import (
    ASSIGNED,
    ENDS_AT,
    FREE,
    LENGTH,
    LOADING,
    NOWHERE,
    SLOT,
    Fleet,
    Loop,
    Serving,
)

__all__ = [
    "append_decode",
    "begin_again",
    "carry",
    "goes_directly",
    "has_prompt_done",
    "join_come",
    "join_decodes",
    "let_go",
    "send",
]


def goes_directly(values: Mapping[type, Any]) -> bool:
    """Return whether a run hands KV caches over between devices."""
    return bool(values[Fleet].hands_directly)


@inlined
def has_prompt_done(s: Serving, slot: int) -> bool:
    """Return whether a waiting request was prefilled on another instance."""
    return bool(s.request[slot].made > 0)


@inlined
def append_decode(s: Serving, i: int, slot: int, tokens: int) -> None:
    """Add a request with `tokens` tokens to instance `i`'s decodes."""
    inst, req = s.instance[i], s.request[slot]
    s.decoding[i, inst.n_decode, SLOT] = slot
    s.decoding[i, inst.n_decode, ENDS_AT] = inst.decode_clock + tokens
    s.decoding[i, inst.n_decode, LENGTH] = req.prompt + req.output
    inst.n_decode += 1
    inst.looked_at = -1


@jitable
def send(
    w: Loop, i: int, slot: int, n_output: int, j: int,
    through_host: bool, now_s: float,
) -> None:  # fmt: skip
    """Hand over a request of instance `i`, out of its batch, to `j` of the same model."""
    inst, req = w.s.instance[i], w.s.request[slot]
    charge(w.s, slot, True)
    start_kind = req.start_kind
    append_waiting(w.s, j, slot)
    w.s.instance[j].backlog -= req.prompt  # which is computed
    req.start_kind = start_kind
    req.made = n_output
    req.source = inst.on_device
    req.handed_s = now_s
    req.handed_bytes = 0.0
    req.held_by = i
    w.s.count[0].handed += 1
    if through_host:
        req.held_by = -1
        req.handed_bytes = request_bytes(w.fleet, w.s, j, req.prompt + n_output)
        leave(w, i, slot)
        w.s.instance[j].coming_bytes += req.handed_bytes
        w.s.chip[w.s.instance[j].chip].kv_room_bytes -= req.handed_bytes
        emit(w.s, ACT_HAND, slot)


@jitable
def let_go(w: Loop, slot: int) -> None:
    """Free KV memory that a waiting request has outside its instance."""
    req = w.s.request[slot]
    inst, i = w.s.instance[req.instance], req.held_by
    if not w.fleet.hands_directly:
        inst.coming_bytes -= req.handed_bytes
        w.s.chip[inst.chip].kv_room_bytes += req.handed_bytes
    elif req.handed_bytes > 0.0:
        places = request_places(w.fleet, w.s, req.instance, req.prompt + req.output)
        release_kv(w.fleet, w.s, req.instance, slot, places)
        w.s.inbound[req.instance].sent -= 1
        w.s.inbound[req.instance].come -= 1 if i < 0 else 0
    if i >= 0:
        req.held_by = -1
        leave(w, i, slot)
        ask(w.s, w.s.instance[i].on_device)  # which may have waited for the room


@jitable
def join_decodes(w: Loop, i: int, slot: int) -> None:
    """Add a handed-over request with room to instance `i`'s decodes."""
    inst, req = w.s.instance[i], w.s.request[slot]
    if req.held_by >= 0:
        emit(w.s, ACT_HAND, slot)
    let_go(w, slot)
    keep_charge(w.s, slot)
    w.s.plan[inst.on_device].kv_in_bytes += req.handed_bytes
    _join(w.s, i, slot)


@inlined
def _join(s: Serving, i: int, slot: int) -> None:
    inst, req = s.instance[i], s.request[slot]
    if batch_size(s, i) == 0:
        inst.last_step_s = inst.last_token_s = req.handed_s  # since then there has been work
    append_decode(s, i, slot, req.output - req.made)
    req.made = 0


@apart("join_come", needed=goes_directly)
def join_come(
    w: Loop,
    i: int,
) -> None:
    """Add requests with arrived KV caches to instance `i`'s decodes."""
    inbound = w.s.inbound[i]
    before, slot = -1, int(w.s.instance[i].wait_head)
    while inbound.come > 0:
        following = int(w.s.request[slot].next)
        if w.s.request[slot].held_by >= 0:
            before = slot
        else:
            unlink(w.s, i, before, slot)
            inbound.sent -= 1
            inbound.come -= 1
            keep_charge(w.s, slot)
            _join(w.s, i, slot)
        slot = following


@apart("carry", needed=goes_directly)
def carry(w: Loop, d: int, now_s: float) -> None:
    """Send KV caches to device `d`, in queue order, within its room."""
    dev = w.s.device[d]
    for k in range(1, w.fleet.residents + 1):
        i = dev.first + (max(dev.last, dev.first) - dev.first + k) % w.fleet.residents
        state = w.s.instance[i].state
        is_there = state != FREE and state != ASSIGNED and state != LOADING and state != NOWHERE
        if is_there and w.s.instance[i].n_wait > 0:
            _carry_to(w, i, now_s)


@jitable
def _carry_to(w: Loop, i: int, now_s: float) -> None:
    inst = w.s.instance[i]
    d = inst.on_device
    slot = int(inst.wait_head)
    while slot >= 0:
        req = w.s.request[slot]
        if req.handed_bytes == 0.0:
            places = request_places(w.fleet, w.s, i, req.prompt + req.output)
            need = place_bytes(w.fleet, w.s, i, places)
            if need > room_bytes(w.s, d):
                make_room_for(w, i, need, now_s)
            room = quota_bytes(w, i, room_bytes(w.s, d))
            batch = batch_size(w.s, i) + w.s.inbound[i].sent
            if not may_join(w.rules.system.admit, need, room, batch, w.fleet.max_batch):
                return
            w.s.inbound[i].sent += 1
            inst.kv_used += places
            w.s.device[d].kv_bytes += need
            # The last token that it has made is in no KV cache yet.
            req.handed_bytes = request_bytes(w.fleet, w.s, i, req.prompt + req.made - 1)
            emit(w.s, ACT_HAND, slot)
        slot = int(req.next)


@jitable
def begin_again(s: Serving, slot: int) -> None:
    """Restart a handed-over request whose KV cache is gone."""
    keep_charge(s, slot)
    tokens = s.request[slot].made
    s.request[slot].made = 0
    s.request[slot].held_by = -1
    s.request[slot].handed_bytes = 0.0
    start_over(s, slot, tokens)
