"""Moves of a batch scheduler (`c2c.policies.batch`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from c2c.policies import apart, inlined, jitable, may_join, most_rows
from c2c.serving.batches.handover import has_prompt_done, join_decodes
from c2c.serving.batches.instances import make_room_for
from c2c.serving.batches.moments import may_begin, on_join
from c2c.serving.batches.preemption import start_over
from c2c.serving.batches.queues import pop_waiting, push_waiting
from c2c.serving.batches.records import leave, release_kv
from c2c.serving.memory.hbm import (
    could_hold,
    place_bytes,
    quota_bytes,
    request_bytes,
    reserved_places,
    room_bytes,
)
from c2c.serving.tables.actions import ACT_ASIDE, emit
from c2c.serving.tables.batch import batch_size, generated, remove_decode, tokens_left
from c2c.serving.tables.state import SLOT, Loop, Rules

__all__ = [
    "admits",
    "compute_prompts",
    "could_join",
    "extend",
    "free_tokens",
    "has_room",
    "is_short",
    "is_stuck",
    "join",
    "join_head",
    "longest_prompt",
    "preempt",
    "return_spare",
]


def _grows(values: Mapping[type, Any]) -> bool:
    return bool(values[Rules].traits.batch.grows)


@inlined
def longest_prompt(w: Loop) -> int:
    """Return a step's most prompt tokens in the cost tables."""
    return int(w.fleet.costs.body_s.shape[1] - 1 - w.fleet.max_batch)


@inlined
def join(w: Loop, i: int, tokens: int, home: int, now_s: float) -> int:
    """Move the head of instance `i`'s queue into its batch; return its slot.

    Args:
      tokens: of prompt and answer, reserved.
      home: its KV cache's home with shared memories; else 0.
    """
    inst = w.s.instance[i]
    slot = pop_waiting(w.s, i)
    req = w.s.request[slot]
    req.unreserved = req.prompt + req.output - tokens
    is_done = has_prompt_done(w.s, slot)
    places = reserved_places(w.fleet, w.s, i, slot)
    inst.kv_used += places
    w.s.device[inst.on_device].kv_bytes += place_bytes(w.fleet, w.s, i, places)
    if is_done:
        join_decodes(w, i, slot)
    else:
        req.admitted_s = now_s
        w.s.prefilling[i, inst.n_prefill] = slot
        inst.n_prefill += 1
    on_join(w, i, slot, home, is_done)
    return slot


@jitable
def free_tokens(w: Loop, i: int) -> int:
    """Return instance `i`'s free KV tokens, without windows."""
    return int(room_bytes(w.s, w.s.instance[i].on_device) // request_bytes(w.fleet, w.s, i, 1))


@jitable
def has_room(w: Loop, i: int, tokens: int, now_s: float) -> bool:
    """Return whether so many tokens have room, without kept weights."""
    if tokens > free_tokens(w, i):
        make_room_for(w, i, tokens * request_bytes(w.fleet, w.s, i, 1), now_s)
    return tokens <= free_tokens(w, i)


@jitable
def _spare_bytes(w: Loop, d: int) -> float:
    # What the run under way on device d has taken for its later steps, and returns at its end.
    i = w.s.device[d].running
    spare = 0
    if i >= 0:
        for k in range(w.s.instance[i].n_decode):
            spare += tokens_left(w.s, i, k) - w.s.request[w.s.decoding[i, k, SLOT]].unreserved
    return request_bytes(w.fleet, w.s, i, spare) if spare > 0 else 0.0


@inlined
def _head_tokens(w: Loop, i: int, spare: int) -> int:
    # Tokens for which the head of instance i's queue must find room; 0: it may not join.
    inst = w.s.instance[i]
    if inst.n_wait == 0 or inst.draining != 0 or batch_size(w.s, i) >= w.fleet.max_batch:
        return 0
    head = w.s.request[inst.wait_head]
    if batch_size(w.s, i) > 0:
        return int(head.prompt + 1 + spare)
    return int(head.prompt + (head.output if w.fleet.residents > 1 else 1))


@inlined
def admits(w: Loop, i: int, need: float, room: float) -> bool:
    """Return whether the queue's head may join with this room."""
    if not may_begin(w, i, w.s.instance[i].wait_head):
        return False
    room = quota_bytes(w, i, room)
    most = w.fleet.max_batch
    if w.rules.traits.vary.caps_batch:
        most = most_rows(w.rules.system.vary, w.rules.own.vary, i, most)
    return bool(may_join(w.rules.system.admit, need, room, batch_size(w.s, i), most))


@jitable
def could_join(w: Loop, i: int, spare: int) -> bool:
    """Return whether instance `i`'s queue head finds room for prompt and first token.

    Args:
      spare: tokens that stay free, unless its batch is empty.
    """
    tokens = _head_tokens(w, i, spare)
    if tokens == 0:
        return False
    need = request_bytes(w.fleet, w.s, i, tokens)
    d = w.s.instance[i].on_device
    room = room_bytes(w.s, d) - w.s.instance[i].parked_bytes + _spare_bytes(w, d)
    if need > room and could_hold(w.fleet, w.s, i, need):
        room = need
    return admits(w, i, need, room)


@jitable
def join_head(w: Loop, i: int, spare: int, now_s: float) -> bool:
    """Let instance `i`'s queue head join if `could_join`; return whether."""
    tokens = _head_tokens(w, i, spare)
    if tokens == 0 or not has_room(w, i, tokens, now_s):
        return False
    need = request_bytes(w.fleet, w.s, i, tokens)
    if not admits(w, i, need, room_bytes(w.s, w.s.instance[i].on_device)):
        return False
    join(w, i, w.s.request[w.s.instance[i].wait_head].prompt + 1, 0, now_s)
    return True


@jitable
def compute_prompts(w: Loop, i: int, budget: int) -> int:
    """Put prompts into the next step in order; return their tokens."""
    rest = min(budget, longest_prompt(w))
    taken = 0
    for k in range(w.s.instance[i].n_prefill):
        req = w.s.request[w.s.prefilling[i, k]]
        req.step_tokens = max(0, min(rest, req.prompt - req.prefilled))
        rest -= req.step_tokens
        taken += req.step_tokens
    return int(taken)


@jitable
def preempt(w: Loop, i: int, k: int) -> None:
    """Set decode `k` of instance `i` aside, first in its queue, to recompute."""
    slot = w.s.decoding[i, k, SLOT]
    tokens = generated(w.s, i, k)
    remove_decode(w.s, i, k)
    leave(w, i, slot)
    start_over(w.s, slot, tokens)
    emit(w.s, ACT_ASIDE, w.s.request[slot].id)
    w.s.count[0].preempted += 1
    push_waiting(w.s, i, slot)


@jitable
def is_short(w: Loop, i: int, now_s: float) -> bool:
    """Return whether a decode of instance `i` lacks room for a token."""
    inst = w.s.instance[i]
    has_others = inst.n_decode > 1 or (inst.n_decode == 1 and inst.n_prefill > 0)
    return bool(has_others and not has_room(w, i, inst.n_decode, now_s))


@apart("is_stuck", needed=_grows)
def is_stuck(w: Loop, i: int) -> bool:
    """Return whether instance `i`'s one decode has no room for a token."""
    inst = w.s.instance[i]
    if w.fleet.residents == 1 or inst.n_decode != 1 or inst.n_prefill > 0:
        return False
    need = request_bytes(w.fleet, w.s, i, 1)
    if w.s.request[w.s.decoding[i, 0, SLOT]].unreserved == 0:
        return False
    room = room_bytes(w.s, inst.on_device) - inst.parked_bytes
    return bool(need > room and not could_hold(w.fleet, w.s, i, need))


@jitable
def _set_unreserved(w: Loop, i: int, slot: int, tokens: int) -> int:
    # Returns the places of KV cache that this takes.
    before = reserved_places(w.fleet, w.s, i, slot)
    w.s.request[slot].unreserved = tokens
    return int(reserved_places(w.fleet, w.s, i, slot) - before)


@apart("return_spare", needed=_grows)
def return_spare(w: Loop, i: int) -> None:
    """Free what instance `i`'s decodes took for undone steps."""
    for k in range(w.s.instance[i].n_decode):
        slot = w.s.decoding[i, k, SLOT]
        rest = tokens_left(w.s, i, k)
        if w.s.request[slot].unreserved < rest:
            release_kv(w.fleet, w.s, i, slot, -_set_unreserved(w, i, slot, rest))


@jitable
def extend(w: Loop, i: int, now_s: float) -> int:
    """Take the room of instance `i`'s next decode steps; return the count."""
    inst = w.s.instance[i]
    n = inst.n_decode
    if n == 0:
        return 1
    has_room(w, i, n, now_s)
    steps = max(1, free_tokens(w, i) // n)
    for k in range(n):
        steps = min(steps, tokens_left(w.s, i, k))
    places = 0
    for k in range(n):
        slot = w.s.decoding[i, k, SLOT]
        rest = tokens_left(w.s, i, k)
        if w.s.request[slot].unreserved > rest - steps:
            places += _set_unreserved(w, i, slot, rest - steps)
    inst.kv_used += places
    w.s.device[inst.on_device].kv_bytes += place_bytes(w.fleet, w.s, i, places)
    return int(steps)
