"""A request decodes on another instance than the one that computed its prompt: it is handed over.

It waits there in the queue like any other, with the tokens that it has. Its KV cache lies meanwhile

- in host memory, as that of an engine that waits for its turn: the backend carries it, and holds
  the step that the request joins until it has come; or
- where it was computed, if the prompt's own step sends it (lanes of a layout): until the other
  instance has room it takes up room there, so that prompts wait where decoding does not keep up; or
- likewise where it was computed, if it goes from device to device (`Fleet.hands_directly`): once
  the other instance has room, which is kept from then on, the backend carries it. When it has come
  its room at the source is free, and it joins the batch at the next step boundary.

Which instance takes it is decided in `c2c.serving.decode_target`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from c2c.policies import apart, inlined, jitable, may_join
from c2c.serving.actions import ACT_HAND, ask, emit
from c2c.serving.batch import batch_size
from c2c.serving.charges import charge, keep_charge
from c2c.serving.hbm import (
    place_bytes,
    quota_bytes,
    request_bytes,
    request_places,
    room_bytes,
)
from c2c.serving.instances import make_room_for
from c2c.serving.preemption import start_over
from c2c.serving.queues import append_waiting, unlink
from c2c.serving.records import leave, release_kv
from c2c.serving.state import (
    ASSIGNED,
    ENDS_AT,
    FREE,
    LENGTH,
    LOADING,
    NOWHERE,
    SLOT,
    Fleet,
    Rules,
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
    """Return whether a run hands KV caches over from device to device."""
    return bool(values[Fleet].hands_directly)


@inlined
def has_prompt_done(s: Serving, slot: int) -> bool:
    """Return whether a waiting request comes from another instance, with its KV cache."""
    return bool(s.request[slot].made > 0)


@inlined
def append_decode(s: Serving, i: int, slot: int, left: int) -> None:
    """Let a request with `left` tokens to go take part in the decode steps of instance `i`."""
    inst, req = s.instance[i], s.request[slot]
    s.decoding[i, inst.n_decode, SLOT] = slot
    s.decoding[i, inst.n_decode, ENDS_AT] = inst.decode_clock + left
    s.decoding[i, inst.n_decode, LENGTH] = req.prompt + req.output
    inst.n_decode += 1
    inst.looked_at = -1


@jitable
def send(
    fleet: Fleet, rules: Rules, s: Serving, i: int, slot: int, made: int, j: int,
    through_host: bool, now_s: float,
) -> None:  # fmt: skip
    """Hand a request of instance `i`, which stands in its batch no more, over to `j` of its model.

    Args:
      fleet, rules, s: what there is.
      i: the instance that computed its prompt.
      slot: of the request.
      made: tokens that it has generated.
      j: the instance that is to decode it.
      through_host: its KV cache goes to host memory now; else it stays until it is taken.
      now_s: the time.
    """
    inst, req = s.instance[i], s.request[slot]
    charge(s, slot, True)
    start_kind = req.start_kind
    append_waiting(s, j, slot)
    s.instance[j].backlog -= req.prompt  # which is computed
    req.start_kind = start_kind
    req.made = made
    req.source = inst.on_device
    req.handed_s = now_s
    req.handed_bytes = 0.0
    req.held_by = i
    s.count[0].handed += 1
    if through_host:
        req.held_by = -1
        req.handed_bytes = request_bytes(fleet, s, j, req.prompt + made)
        leave(fleet, rules, s, i, slot, now_s)
        s.instance[j].coming_bytes += req.handed_bytes
        s.chip[s.instance[j].chip].kv_room_bytes -= req.handed_bytes
        emit(s, ACT_HAND, slot)


@jitable
def let_go(fleet: Fleet, rules: Rules, s: Serving, slot: int, now_s: float) -> None:
    """Free the memory that the KV cache of a waiting request takes up outside its instance."""
    req = s.request[slot]
    inst, i = s.instance[req.instance], req.held_by
    if not fleet.hands_directly:
        inst.coming_bytes -= req.handed_bytes
        s.chip[inst.chip].kv_room_bytes += req.handed_bytes
    elif req.handed_bytes > 0.0:
        places = request_places(fleet, s, req.instance, req.prompt + req.output)
        release_kv(fleet, s, req.instance, slot, places)
        s.inbound[req.instance].sent -= 1
        s.inbound[req.instance].come -= 1 if i < 0 else 0
    if i >= 0:
        req.held_by = -1
        leave(fleet, rules, s, i, slot, now_s)
        ask(s, s.instance[i].on_device)  # which may have waited for the room


@jitable
def join_decodes(fleet: Fleet, rules: Rules, s: Serving, i: int, slot: int, now_s: float) -> None:
    """Let a request that was handed over, and has room in HBM now, decode on instance `i`."""
    inst, req = s.instance[i], s.request[slot]
    if req.held_by >= 0:
        emit(s, ACT_HAND, slot)
    let_go(fleet, rules, s, slot, now_s)
    keep_charge(s, slot)
    s.plan[inst.on_device].kv_in_bytes += req.handed_bytes
    _join(s, i, slot)


@inlined
def _join(s: Serving, i: int, slot: int) -> None:
    inst, req = s.instance[i], s.request[slot]
    if batch_size(s, i) == 0:
        inst.last_step_s = inst.last_token_s = req.handed_s  # since then there has been work
    append_decode(s, i, slot, req.output - req.made)
    req.made = 0


@apart("join_come", needed=goes_directly)
def join_come(
    fleet: Fleet,  # noqa: ARG001 (which says whether this is needed)
    rules: Rules,  # noqa: ARG001 (among which the address is)
    s: Serving,
    i: int,
) -> None:
    """Let the requests whose KV caches have come to instance `i` decode there."""
    inbound = s.inbound[i]
    before, slot = -1, int(s.instance[i].wait_head)
    while inbound.come > 0:
        following = int(s.request[slot].next)
        if s.request[slot].held_by >= 0:
            before = slot
        else:
            unlink(s, i, before, slot)
            inbound.sent -= 1
            inbound.come -= 1
            keep_charge(s, slot)
            _join(s, i, slot)
        slot = following


@apart("carry", needed=goes_directly)
def carry(fleet: Fleet, rules: Rules, s: Serving, d: int, now_s: float) -> None:
    """Let KV caches leave for device `d`, in the order of its queues, while it has room.

    The instance that ran last comes last.
    """
    dev = s.device[d]
    for k in range(1, fleet.residents + 1):
        i = dev.first + (max(dev.last, dev.first) - dev.first + k) % fleet.residents
        state = s.instance[i].state
        is_there = state != FREE and state != ASSIGNED and state != LOADING and state != NOWHERE
        if is_there and s.instance[i].n_wait > 0:
            _carry_to(fleet, rules, s, i, now_s)


@jitable
def _carry_to(fleet: Fleet, rules: Rules, s: Serving, i: int, now_s: float) -> None:
    inst = s.instance[i]
    d = inst.on_device
    slot = int(inst.wait_head)
    while slot >= 0:
        req = s.request[slot]
        if req.handed_bytes == 0.0:
            places = request_places(fleet, s, i, req.prompt + req.output)
            need = place_bytes(fleet, s, i, places)
            if need > room_bytes(s, d):
                make_room_for(fleet, rules, s, i, need, now_s)
            room = quota_bytes(fleet, rules, s, i, room_bytes(s, d))
            batch = batch_size(s, i) + s.inbound[i].sent
            if not may_join(rules.system.admit, need, room, batch, fleet.max_batch):
                return
            s.inbound[i].sent += 1
            inst.kv_used += places
            s.device[d].kv_bytes += need
            # The last token that it has made is in no KV cache yet.
            req.handed_bytes = request_bytes(fleet, s, i, req.prompt + req.made - 1)
            emit(s, ACT_HAND, slot)
        slot = int(req.next)


@jitable
def begin_again(s: Serving, slot: int) -> None:
    """Let a request that was handed over begin again without its KV cache, which is gone."""
    keep_charge(s, slot)
    made = s.request[slot].made
    s.request[slot].made = 0
    s.request[slot].held_by = -1
    s.request[slot].handed_bytes = 0.0
    start_over(s, slot, made)
