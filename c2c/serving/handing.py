"""A prompt is computed on one kind of lane and decoded on another: the request is handed on.

It waits there for room, in order; until then its keys and values stay where they were computed, so
that prompts wait, too, where decoding does not keep up. The step that computed the prompt ends when
they could have been sent.
"""

from __future__ import annotations

from c2c.policies import inlined, jitable
from c2c.serving.actions import ACT_HAND, ask, emit
from c2c.serving.queues import append_waiting
from c2c.serving.records import release_kv
from c2c.serving.state import ENDS_AT, LENGTH, SLOT, Fleet, Serving

__all__ = ["charge", "hand_on", "is_handed", "join_decodes", "keep_charge", "let_go_of"]


@inlined
def is_handed(s: Serving, slot: int) -> bool:
    """Return whether a request that waits has had its prompt computed elsewhere."""
    return bool(s.request[slot].held_by >= 0)


@jitable
def charge(s: Serving, slot: int, has_tokens: bool) -> None:
    """Note what a request has been charged on its instance, which it leaves."""
    req = s.request[slot]
    inst = s.instance[req.instance]
    req.was_steps = inst.sum_steps - req.from_steps
    req.was_alpha = inst.sum_alpha - req.from_alpha
    req.was_link = inst.sum_link - req.from_link
    req.was_hbm = inst.sum_hbm - req.from_hbm
    req.was_alone_s = (inst.sum_alone_s if has_tokens else 0.0) - req.from_alone_s


@jitable
def _target(fleet: Fleet, s: Serving, i: int) -> int:
    # The least busy instance of the model on the chip of instance i that takes its prompts; or -1.
    best, least = -1, 0
    j = s.model[s.instance[i].model].active
    while j >= 0:
        other = s.instance[j]
        busy = other.n_wait + other.n_prefill + other.n_decode
        is_right = other.chip == s.instance[i].chip and other.draining == 0
        is_right = is_right and other.kind == fleet.hands_to[s.instance[i].kind]
        if is_right and (best < 0 or busy < least):
            best, least = j, busy
        j = other.next_same
    return int(best)


@jitable
def hand_on(fleet: Fleet, s: Serving, i: int, slot: int) -> int:
    """Send a request whose prompt instance `i` has computed to where it is decoded.

    Returns:
      The instance it waits at now; -1: there is none left, and it stays.
    """
    req = s.request[slot]
    j = _target(fleet, s, i)
    if j < 0 or s.instance[j].kv_capacity < req.prompt + req.output:
        return -1
    charge(s, slot, True)
    start_kind = req.start_kind
    append_waiting(s, j, slot)
    req.start_kind = start_kind
    req.held_by = i
    return j


@jitable
def let_go_of(fleet: Fleet, s: Serving, slot: int) -> None:
    """Free the KV cache of a request where its prompt was computed."""
    req = s.request[slot]
    i = req.held_by
    req.held_by = -1
    release_kv(fleet, s, i, req.prompt + req.output)
    ask(s, s.instance[i].on_device)  # which may have waited for the room


@jitable
def keep_charge(s: Serving, slot: int) -> None:
    """Begin the books of a request on its new instance with what it was charged before."""
    inst, req = s.instance[s.request[slot].instance], s.request[slot]
    req.from_steps = inst.sum_steps - req.was_steps
    req.from_alpha = inst.sum_alpha - req.was_alpha
    req.from_link = inst.sum_link - req.was_link
    req.from_hbm = inst.sum_hbm - req.was_hbm
    req.from_alone_s = inst.sum_alone_s - req.was_alone_s


@jitable
def join_decodes(fleet: Fleet, s: Serving, i: int, slot: int) -> None:
    """Let a request that was handed to instance `i` take part in its decode steps."""
    inst, req = s.instance[i], s.request[slot]
    let_go_of(fleet, s, slot)
    emit(s, ACT_HAND, slot)
    inst.backlog -= req.prompt
    keep_charge(s, slot)
    s.decoding[i, inst.n_decode, SLOT] = slot
    s.decoding[i, inst.n_decode, ENDS_AT] = inst.decode_clock + req.output - 1
    s.decoding[i, inst.n_decode, LENGTH] = req.prompt + req.output
    inst.n_decode += 1
