"""Moves of a batch scheduler (`c2c.policies.batch`): what its `fill` and `joins` are made of."""

from __future__ import annotations

from c2c.policies import inlined, jitable
from c2c.serving.actions import ACT_ASIDE, emit
from c2c.serving.batch import batch_size, generated, remove_decode, tokens_left
from c2c.serving.handover import has_prompt_done, join_decodes
from c2c.serving.hbm import place_bytes, request_bytes, reserved_places, room_bytes
from c2c.serving.instances import make_room_for
from c2c.serving.kv_homes import take_home
from c2c.serving.preemption import start_over
from c2c.serving.prefixes import claim_prefix
from c2c.serving.queues import pop_waiting, push_waiting
from c2c.serving.records import leave
from c2c.serving.state import SLOT, Loop

__all__ = [
    "compute_prompts",
    "could_join",
    "extend",
    "free_tokens",
    "has_room",
    "is_short",
    "join",
    "join_head",
    "longest_prompt",
    "preempt",
]


@inlined
def longest_prompt(w: Loop) -> int:
    """Return the maximum prompt tokens of a step, where the cost tables end."""
    return int(w.fleet.costs.body_s.shape[1] - 1 - w.fleet.max_batch)


@inlined
def join(w: Loop, i: int, tokens: int, home: int, now_s: float) -> int:
    """Move the head of instance `i`'s queue into its batch; return its slot.

    Args:
      tokens: tokens of prompt and answer for which it takes room, at most all of them.
      home: home of its KV cache, where lanes share memories; else 0.
    """
    inst = w.s.instance[i]
    slot = pop_waiting(w.s, i)
    req = w.s.request[slot]
    req.unreserved = req.prompt + req.output - tokens
    places = reserved_places(w.fleet, w.s, i, slot)
    is_done = has_prompt_done(w.s, slot)
    if req.blocks > 0 and not is_done:
        places -= claim_prefix(w, i, slot)
    inst.kv_used += places
    w.s.device[inst.on_device].kv_bytes += place_bytes(w.fleet, w.s, i, places)
    if is_done:
        join_decodes(w, i, slot)
    else:
        req.admitted_s = now_s
        w.s.prefilling[i, inst.n_prefill] = slot
        inst.n_prefill += 1
    if len(w.fleet.kv.room_bytes) > 0:
        take_home(w, i, slot, home)
    return slot


@jitable
def free_tokens(w: Loop, i: int) -> int:
    """Return the tokens of KV cache that instance `i`'s device has room for, without windows."""
    return int(room_bytes(w.s, w.s.instance[i].on_device) // request_bytes(w.fleet, w.s, i, 1))


@jitable
def has_room(w: Loop, i: int, tokens: int, now_s: float) -> bool:
    """Return True if there is room for so many more tokens; kept weights give way for it."""
    if tokens > free_tokens(w, i):
        make_room_for(w, i, tokens * request_bytes(w.fleet, w.s, i, 1), now_s)
    return tokens <= free_tokens(w, i)


@jitable
def could_join(w: Loop, i: int, spare: int) -> bool:
    """Return True if the head of instance `i`'s queue has room for its prompt and a first token.

    Args:
      spare: tokens that have to stay free, unless its batch is empty: nothing else frees any then.
    """
    inst = w.s.instance[i]
    if inst.n_wait == 0 or inst.draining != 0 or batch_size(w.s, i) >= w.fleet.max_batch:
        return False
    spare = spare if batch_size(w.s, i) > 0 else 0
    return bool(w.s.request[inst.wait_head].prompt + 1 + spare <= free_tokens(w, i))


@jitable
def join_head(w: Loop, i: int, spare: int, now_s: float) -> bool:
    """Let the head of instance `i`'s queue join if its prompt and a token have room.

    Args:
      w: the loop.
      i: instance.
      spare: as in `could_join`; kept weights give way for them, too.
      now_s: current time.

    Returns:
      Whether it has joined.
    """
    inst = w.s.instance[i]
    if inst.n_wait == 0:
        return False
    tokens = w.s.request[inst.wait_head].prompt + 1
    has_room(w, i, tokens + (spare if batch_size(w.s, i) > 0 else 0), now_s)
    if not could_join(w, i, spare):
        return False
    join(w, i, tokens, 0, now_s)
    return True


@jitable
def compute_prompts(w: Loop, i: int, budget: int) -> int:
    """Put prompts of the batch into the next step, first come first served; return their tokens."""
    left = min(budget, longest_prompt(w))
    taken = 0
    for k in range(w.s.instance[i].n_prefill):
        req = w.s.request[w.s.prefilling[i, k]]
        req.step_tokens = max(0, min(left, req.prompt - req.prefilled))
        left -= req.step_tokens
        taken += req.step_tokens
    return int(taken)


@jitable
def preempt(w: Loop, i: int, k: int) -> None:
    """Set decode `k` of instance `i` aside, first in its queue: it computes its KV cache again."""
    slot = w.s.decoding[i, k, SLOT]
    made = generated(w.s, i, k)
    remove_decode(w.s, i, k)
    leave(w, i, slot)
    start_over(w.s, slot, made)
    emit(w.s, ACT_ASIDE, w.s.request[slot].id)
    w.s.count[0].preempted += 1
    push_waiting(w.s, i, slot)


@jitable
def is_short(w: Loop, i: int, now_s: float) -> bool:
    """Return True if a decode of instance `i` must give way: not all have room for a token.

    A decode alone on its device has room for its whole answer.
    """
    inst = w.s.instance[i]
    has_others = inst.n_decode > 1 or (inst.n_decode == 1 and inst.n_prefill > 0)
    return bool(has_others and not has_room(w, i, inst.n_decode, now_s))


@jitable
def extend(w: Loop, i: int, now_s: float) -> int:
    """Take the room of instance `i`'s next decode steps, after `is_short` said no.

    Returns:
      For how many steps there is room, at least 1.
    """
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
        req = w.s.request[slot]
        before = reserved_places(w.fleet, w.s, i, slot)
        spare = tokens_left(w.s, i, k) - req.unreserved  # what a run that was interrupted left
        req.unreserved -= min(req.unreserved, max(0, steps - spare))
        places += reserved_places(w.fleet, w.s, i, slot) - before
    inst.kv_used += places
    w.s.device[inst.on_device].kv_bytes += place_bytes(w.fleet, w.s, i, places)
    return int(steps)
