"""KV homes in memories that a chip's lanes share."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from c2c.cost import cache_places
from c2c.policies import apart, jitable, kv_home
from c2c.serving.memory.hbm import pair_of, request_bytes, room_bytes
from c2c.serving.tables.actions import ACT_INTERRUPT, ACT_RELAYOUT, ask, emit, is_new_run
from c2c.serving.tables.batch import batch_size, kv_tokens
from c2c.serving.tables.costs import shape_of
from c2c.serving.tables.plans import CACHED, GROWTH, PREFILL, ROWS
from c2c.serving.tables.state import (
    GONE,
    RUNNING,
    SENDS,
    SENT,
    SETTLED,
    SLOT,
    WAITS,
    Fleet,
    Loop,
    Serving,
)

__all__ = [
    "choose_home",
    "count_step",
    "on_relaid",
    "settle_memories",
    "take_home",
    "take_memory",
    "vacancy",
    "want_version",
]


def _has_memories(values: Mapping[type, Any]) -> bool:
    return len(values[Fleet].kv.room_bytes) > 0


def _has_lanes(values: Mapping[type, Any]) -> bool:
    return bool(values[Fleet].opens_all)


@jitable
def take_memory(fleet: Fleet, s: Serving, i: int, slot: int, tokens: int) -> None:
    """Reserve memory for a request's tokens at its homes; below 0: free."""
    req, d = s.request[slot], s.instance[i].on_device
    one = fleet.kv.token_bytes[pair_of(fleet, s, i)]
    for k in range(len(fleet.kv.room_bytes)):
        s.taken[d, k] += tokens * one[req.kv_home, k]
        if req.kv_next != req.kv_home:
            s.taken[d, k] += tokens * one[req.kv_next, k]
    if tokens < 0:
        ask(s, d)  # and so all that share the memory: see `settle_memories`


@jitable
def _copied(fleet: Fleet, s: Serving, d: int, k: int) -> float:
    # The weights that the variant of lane d, and the one to come, need in memory k.
    move, kind = s.relayout[d], s.device[d].kind
    copy_bytes = fleet.kv.copied_bytes[kind, move.version, k]
    if move.state != SETTLED:
        copy_bytes = max(copy_bytes, fleet.kv.copied_bytes[kind, move.wanted, k])
    return float(copy_bytes)


@jitable
def _free_bytes(fleet: Fleet, s: Serving, d: int, k: int) -> float:
    # What lane d may take of memory k; below 0 where a relayout waits for room.
    free = fleet.kv.room_bytes[k] - s.taken[d, k]
    chip = s.chip[s.device[d].chip]
    for j in range(chip.first, chip.last):
        free -= _copied(fleet, s, j, k)
        if j != d:
            free -= max(s.taken[j, k], fleet.kv.reserve_bytes[s.device[j].kind, k])
    return float(free)


@jitable
def vacancy(fleet: Fleet, s: Serving, i: int) -> float:
    """Return the largest free share of instance `i`'s further homes."""
    most = 0.0
    if len(fleet.kv.room_bytes) == 0 or s.instance[i].model < 0:
        return most
    one, d = fleet.kv.token_bytes[pair_of(fleet, s, i)], s.instance[i].on_device
    for k in range(len(fleet.kv.room_bytes)):
        for h in range(1, fleet.kv.homes[s.device[d].kind]):
            if one[0, k] == 0.0 and one[h, k] > 0.0:
                most = max(most, _free_bytes(fleet, s, d, k) / fleet.kv.room_bytes[k])
    return float(most)


@jitable
def _home_tokens(fleet: Fleet, s: Serving, i: int, h: int) -> int:
    # Tokens that home h of instance i has room for.
    most = math.inf
    one = fleet.kv.token_bytes[pair_of(fleet, s, i)]
    for k in range(len(fleet.kv.room_bytes)):
        if one[h, k] > 0.0:
            most = min(most, _free_bytes(fleet, s, s.instance[i].on_device, k) // one[h, k])
    return int(most)


@jitable
def _is_open(fleet: Fleet, s: Serving, d: int, h: int) -> bool:
    # A home that the variant has, and the one to come.
    move, kind = s.relayout[d], s.device[d].kind
    is_open = fleet.kv.is_open[kind, move.version, h] != 0
    if move.state != SETTLED:
        is_open = is_open and fleet.kv.is_open[kind, move.wanted, h] != 0
    return bool(is_open)


@jitable
def _measure(fleet: Fleet, s: Serving, c: int) -> None:
    # Set what the lanes of chip c can hold, which is what they have and what is free.
    for d in range(s.chip[c].first, s.chip[c].last):
        i = s.device[d].first
        kind = s.device[d].kind
        if s.instance[i].model < 0 or fleet.kv.homes[kind] == 0:
            continue
        most = 0
        for h in range(fleet.kv.homes[kind]):
            if _is_open(fleet, s, d, h):
                most = max(most, _home_tokens(fleet, s, i, h))
        dev = s.device[d]
        dev.capacity_bytes = dev.kv_bytes + most * fleet.costs.kv_bytes[pair_of(fleet, s, i)]


@jitable
def _sequences(s: Serving, i: int, h: int) -> int:
    # Of the batch of instance i, at home h once a relayout under way is over.
    n = 0
    for k in range(s.instance[i].n_prefill):
        n += 1 if s.request[s.prefilling[i, k]].kv_next == h else 0
    for k in range(s.instance[i].n_decode):
        n += 1 if s.request[s.decoding[i, k, SLOT]].kv_next == h else 0
    return n


@jitable
def _row(fleet: Fleet, s: Serving, i: int, h: int, n: int, is_here: bool) -> None:
    row = s.homes[n]
    row.home = h
    row.sequences = _sequences(s, i, h)
    row.room_tokens = _home_tokens(fleet, s, i, h)
    row.is_here = 1 if is_here else 0


@apart("choose_home", needed=_has_memories)
def choose_home(w: Loop, i: int, slot: int) -> int:
    """Return the home of a request that joins instance `i`; -1: wait."""
    d, req = w.s.instance[i].on_device, w.s.request[slot]
    if w.fleet.kv.homes[w.s.device[d].kind] == 0:
        return 0
    n = 0
    for h in range(w.fleet.kv.homes[w.s.device[d].kind]):
        if _is_open(w.fleet, w.s, d, h):
            _row(w.fleet, w.s, i, h, n, False)
            n += 1
    tokens = req.prompt + req.output
    index = kv_home(
        w.rules.system.vary, w.rules.own.vary, w.s.homes, n, i, req.id, tokens, w.rules.seed
    )
    if index < 0 or w.s.homes[index].room_tokens < tokens:
        return -1
    return int(w.s.homes[index].home)


@apart("take_home", needed=_has_memories)
def take_home(w: Loop, i: int, slot: int, h: int) -> None:
    """Set the home of a request of instance `i`."""
    req = w.s.request[slot]
    req.kv_home, req.kv_next = h, h
    take_memory(w.fleet, w.s, i, slot, req.prompt + req.output)
    _measure(w.fleet, w.s, w.s.instance[i].chip)


@apart("settle_memories", needed=_has_memories)
def settle_memories(w: Loop) -> None:
    """Propagate freed room on marked devices' chips."""
    for index in range(w.s.count[0].asked):
        _settle(w.fleet, w.s, w.s.device[w.s.asked[index]].chip)


@jitable
def _settle(fleet: Fleet, s: Serving, c: int) -> None:
    chip = s.chip[c]
    is_over = False
    while not is_over:  # a variant that comes into force makes room
        is_over = True
        for d in range(chip.first, chip.last):
            if s.relayout[d].state == WAITS and _send(fleet, s, d):
                is_over = False
            if s.relayout[d].state == SENT and s.device[d].running < 0:
                _begin_version(fleet, s, s.device[d].first)
                is_over = False
    _measure(fleet, s, c)
    for d in range(chip.first, chip.last):
        i = s.device[d].first
        inst = s.instance[i]
        if inst.n_wait == 0 or inst.model < 0:
            continue
        if s.device[d].running < 0:
            ask(s, d)
        elif inst.state == RUNNING and s.plan[d].steps > 1 and not is_new_run(s, d):
            head = s.request[inst.wait_head]
            need = request_bytes(fleet, s, i, head.prompt + head.output)
            if need <= room_bytes(s, d) and batch_size(s, i) < fleet.max_batch:
                emit(s, ACT_INTERRUPT, d)


@jitable
def _send_kv(fleet: Fleet, s: Serving, i: int, slot: int, tokens: int) -> None:
    # What so many tokens of a request that changes its home add to what is sent.
    req, d = s.request[slot], s.instance[i].on_device
    one = fleet.kv.moved_bytes[pair_of(fleet, s, i), req.kv_home, req.kv_next]
    for w in range(s.sent_bytes.shape[1]):
        s.sent_bytes[d, w] += tokens * one[w]


@jitable
def _send(fleet: Fleet, s: Serving, d: int) -> bool:
    # Begin to send what the relayout of lane d takes; False while there is no room for all of it.
    for k in range(len(fleet.kv.room_bytes)):
        if _free_bytes(fleet, s, d, k) < 0.0:
            return False
    move, i = s.relayout[d], s.device[d].first
    inst = s.instance[i]
    for w in range(s.sent_bytes.shape[1]):
        s.sent_bytes[d, w] = fleet.kv.sent_bytes[s.device[d].kind, move.version, move.wanted, w]
    for k in range(inst.n_prefill):
        slot = s.prefilling[i, k]
        _send_kv(fleet, s, i, slot, s.request[slot].prefilled)
    for k in range(inst.n_decode):
        _send_kv(fleet, s, i, s.decoding[i, k, SLOT], kv_tokens(s, i, k))
    s.count[0].relayouts += 1
    move.state = SENDS
    total = 0.0
    for w in range(s.sent_bytes.shape[1]):
        total += s.sent_bytes[d, w]
    if total > 0.0:
        emit(s, ACT_RELAYOUT, d)
    else:
        _has_come(s, d)
    return True


@jitable
def _has_come(s: Serving, d: int) -> None:
    # All is there for the other variant: it is in force from the next step boundary on.
    s.relayout[d].state = SENT
    if s.device[d].running < 0:
        ask(s, d)
    elif s.plan[d].steps > 1 and not is_new_run(s, d):
        emit(s, ACT_INTERRUPT, d)


@apart("on_relaid", needed=_has_memories)
def on_relaid(w: Loop, d: int) -> None:
    """Handle the end of device `d`'s relayout."""
    _has_come(w.s, d)


@jitable
def _come_home(fleet: Fleet, s: Serving, i: int, slot: int) -> None:
    req = s.request[slot]
    if req.kv_next != req.kv_home:
        tokens = req.prompt + req.output
        take_memory(fleet, s, i, slot, -tokens)
        req.kv_home = req.kv_next
        take_memory(fleet, s, i, slot, tokens)


@jitable
def _begin_version(fleet: Fleet, s: Serving, i: int) -> None:
    # Put the variant of instance i in force that its relayout has made; no step is under way.
    inst = s.instance[i]
    move = s.relayout[inst.on_device]
    s.count[0].variant_changes += 1
    move.version, move.state = move.wanted, SETTLED
    inst.alpha = move.version / max(1, len(s.alone_s) - 1)
    for k in range(inst.n_prefill):
        _come_home(fleet, s, i, s.prefilling[i, k])
    for k in range(inst.n_decode):
        _come_home(fleet, s, i, s.decoding[i, k, SLOT])


@apart("count_step", needed=_has_lanes)
def count_step(w: Loop, i: int) -> None:
    """Count the work of instance `i`'s step by home."""
    inst = w.s.instance[i]
    d, cache = inst.on_device, shape_of(w.fleet.costs.reads, pair_of(w.fleet, w.s, i))
    for h in range(w.s.split.shape[1]):
        for column in range(4):
            w.s.split[d, h, column] = 0
    for k in range(inst.n_prefill):
        req = w.s.request[w.s.prefilling[i, k]]
        w.s.split[d, req.kv_home, PREFILL] += max(0, req.step_tokens)
    for k in range(w.s.plan[d].decodes):
        h = w.s.request[w.s.decoding[i, k, SLOT]].kv_home
        length = kv_tokens(w.s, i, k)
        w.s.split[d, h, ROWS] += 1
        w.s.split[d, h, CACHED] += cache_places(length, cache)  # of a token each
        w.s.split[d, h, GROWTH] += cache.full + (cache.windowed if length < cache.window else 0)


@jitable
def _rehome(fleet: Fleet, s: Serving, i: int, slot: int, h: int) -> None:
    # Let a request of instance i go to home h with the relayout.
    req = s.request[slot]
    tokens = req.prompt + req.output
    take_memory(fleet, s, i, slot, -tokens)
    req.kv_next = h
    take_memory(fleet, s, i, slot, tokens)


@jitable
def _ask_home(w: Loop, i: int, slot: int) -> None:
    # The home of a request in the variant to come, which need not have room yet; its own if that
    # has been given up.
    req, inst = w.s.request[slot], w.s.instance[i]
    kind, move = inst.kind, w.s.relayout[inst.on_device]
    if move.state == SETTLED:
        _rehome(w.fleet, w.s, i, slot, req.kv_home)
        return
    n = 0
    for h in range(w.fleet.kv.homes[kind]):
        if w.fleet.kv.is_open[kind, move.wanted, h] != 0:
            _row(w.fleet, w.s, i, h, n, h == req.kv_home)
            row = w.s.homes[n]
            row.sequences -= 1 if h == req.kv_next else 0
            if h == req.kv_home:
                row.room_tokens += req.prompt + req.output
            n += 1
    tokens = req.prompt + req.output
    index = kv_home(
        w.rules.system.vary, w.rules.own.vary, w.s.homes, n, i, req.id, tokens, w.rules.seed
    )
    if index < 0:  # it stays, if it can
        index = 0
        for k in range(n):
            index = k if w.s.homes[k].is_here != 0 else index
    _rehome(w.fleet, w.s, i, slot, int(w.s.homes[index].home))


# A relayout copies weights into memories, and sequences change their homes. Memory on both sides is
# reserved first; transfers wait until all have room. The variant is in force from the first step
# boundary after the last transfer.
@apart("want_version", needed=_has_memories)
def want_version(w: Loop, i: int, chosen: int) -> int:
    """Begin instance `i`'s relayout; return the variant in force."""
    inst = w.s.instance[i]
    move = w.s.relayout[inst.on_device]
    is_on_its_way = move.state > WAITS or (move.state == WAITS and move.wanted == chosen)
    if (
        w.s.device[inst.on_device].service == GONE
        or is_on_its_way
        or (move.state == SETTLED and move.version == chosen)
    ):
        return int(move.version)
    move.wanted = chosen
    move.state = SETTLED if chosen == move.version else WAITS
    for k in range(inst.n_prefill):
        _ask_home(w, i, w.s.prefilling[i, k])
    for k in range(inst.n_decode):
        _ask_home(w, i, w.s.decoding[i, k, SLOT])
    _measure(w.fleet, w.s, inst.chip)
    ask(w.s, inst.on_device)
    return int(move.version)
