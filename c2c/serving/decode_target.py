"""Choice of the decode instance for a prefilled request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from c2c.policies import apart, jitable
from c2c.serving.batches.handover import carry, send
from c2c.serving.batches.turns import wake
from c2c.serving.memory.hbm import capacity_bytes, place_bytes, request_bytes
from c2c.serving.placement import place_decodes
from c2c.serving.request_routing import is_too_busy, routed
from c2c.serving.tables.batch import generated, keep_decode, outstanding
from c2c.serving.tables.roles import DECODES
from c2c.serving.tables.state import FREE, IDLE, SLOT, Fleet, Loop, Serving

__all__ = ["hand_on"]


def _hands(values: Mapping[type, Any]) -> bool:
    fleet = values[Fleet]
    return bool(np.any(fleet.role) or np.any(fleet.hands_to >= 0))


@apart("hand_on", needed=_hands)
def hand_on(w: Loop, i: int, now_s: float) -> None:
    """Hand instance `i`'s decodes over to decode instances."""
    inst = w.s.instance[i]
    if w.fleet.role[inst.on_device] == DECODES:
        if w.fleet.hands_directly:
            carry(w, inst.on_device, now_s)
        return
    is_lane = w.fleet.hands_to[inst.kind] >= 0
    count = 0
    for k in range(inst.n_decode):
        slot = w.s.decoding[i, k, SLOT]
        tokens = generated(w.s, i, k)
        j = _lane_for(w.fleet, w.s, i, slot) if is_lane else _taker(w, i, slot, tokens, now_s)
        if j >= 0:
            through_host = not is_lane and not w.fleet.hands_directly
            send(w, i, slot, tokens, j, through_host, now_s)
            wake(w, j)
            if w.fleet.hands_directly:
                carry(w, w.s.instance[j].on_device, now_s)
            continue
        keep_decode(w.s, i, k, count)
        count += 1
    inst.n_decode = count


@jitable
def _lane_for(fleet: Fleet, s: Serving, i: int, slot: int) -> int:
    # The least busy lane of the chip that takes what lane i has prefilled; or -1.
    req = s.request[slot]
    best, least = -1, 0
    j = s.model[req.model].active
    while j >= 0:
        other = s.instance[j]
        busy = outstanding(s, j)
        is_right = other.chip == s.instance[i].chip and other.draining == 0
        is_right = is_right and other.kind == fleet.hands_to[s.instance[i].kind]
        if is_right and (best < 0 or busy < least):
            best, least = j, busy
        j = other.next_same
    if best >= 0 and s.instance[best].kv_capacity < req.prompt + req.output:
        return -1
    return int(best)


@jitable
def _taker(w: Loop, i: int, slot: int, n_output: int, now_s: float) -> int:
    # The instance that takes a request, made active if need be; -1: none does now.
    req = w.s.request[slot]
    tokens = req.prompt + req.output
    result = routed(w, req.model, slot, True)
    waits = w.fleet.hands_directly and result >= 0 and _finds_room(w.fleet, w.s, i, result, slot)
    if waits and not is_too_busy(w, result, slot):
        return result
    if not waits and result >= 0 and _can_take(w.fleet, w.s, i, result, slot, n_output):
        return result
    j = place_decodes(w, req.model, tokens, -1, now_s)
    if j < 0 or not _can_take(w.fleet, w.s, i, j, slot, n_output):
        return result if waits else -1
    return place_decodes(w, req.model, tokens, j, now_s)


@jitable
def _can_take(fleet: Fleet, s: Serving, i: int, j: int, slot: int, n_output: int) -> bool:
    # The batch has a place, host memory has room if the cache goes there, and so has HBM: nothing
    # that waits on a device with its KV cache ever has to go.
    req, inst = s.request[slot], s.instance[j]
    before = outstanding(s, j) if inst.model == req.model else 0
    moved = request_bytes(fleet, s, i, req.prompt + n_output)
    has_room = fleet.hands_directly or moved <= s.chip[inst.chip].kv_room_bytes
    return bool(before < fleet.max_batch and has_room and _finds_room(fleet, s, i, j, slot))


@jitable
def _finds_room(fleet: Fleet, s: Serving, i: int, j: int, slot: int) -> bool:
    # Whether HBM is large enough for a request of instance i on j whatever engines share the device
    # or, where memory is tight, beside those that have work, and for all that waits there then.
    req, inst = s.request[slot], s.instance[j]
    sure = fleet.sure_bytes[inst.kind]
    need = request_bytes(fleet, s, i, req.prompt + req.output)
    is_there = inst.state != FREE and inst.model == req.model
    if need <= sure and (is_there or _most_waiting(fleet, s, inst.on_device) <= sure):
        return True
    room = fleet.kv_capacity_bytes[fleet.deployment[req.model].arch, inst.kind]
    engines = 0
    most = need
    first = s.device[inst.on_device].first
    for k in range(first, first + fleet.residents):
        other = s.instance[k]
        if k == j or other.state == FREE or other.state == IDLE:
            continue
        engines += 1
        room = min(room, capacity_bytes(fleet, s, k))
        most = max(most, place_bytes(fleet, s, k, other.kv_used))
    most = max(most, _most_waiting(fleet, s, inst.on_device))
    return bool(most <= room - engines * fleet.engine_bytes)


@jitable
def _most_waiting(fleet: Fleet, s: Serving, d: int) -> float:
    # The most HBM that a request needs which waits on device d.
    most = 0.0
    for k in range(s.device[d].first, s.device[d].first + fleet.residents):
        if s.instance[k].state == FREE:
            continue
        slot = s.instance[k].wait_head
        while slot >= 0:
            req = s.request[slot]
            most = max(most, request_bytes(fleet, s, k, req.prompt + req.output))
            slot = req.next
    return most
