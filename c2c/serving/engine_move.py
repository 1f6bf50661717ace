"""Moves of engines to other slices, to free a slice for a model that fits only there.

The engine starts on the other slice while it continues on its own. After the start its requests
follow at the next step boundary with their tokens; their KV caches are recomputed.
"""

from __future__ import annotations

import math

from c2c.policies import jitable, move_s
from c2c.serving.actions import ACT_INTERRUPT, ask, emit
from c2c.serving.batch import kv_tokens
from c2c.serving.hbm import place_bytes
from c2c.serving.placement import make_active, place_on, place_pending
from c2c.serving.pools import could_hold_weights, homes_of, instances_of
from c2c.serving.preemption import set_aside
from c2c.serving.queues import take_pending
from c2c.serving.roles import DECODES
from c2c.serving.state import (
    ASSIGNED,
    FREE,
    HELD,
    LOADING,
    READY,
    RUNNING,
    Fleet,
    Rules,
    Serving,
)
from c2c.serving.turns import wake

__all__ = ["follow", "has_moved", "interrupt_for_move", "move_for", "place_after_moves"]


@jitable
def _tokens(s: Serving, i: int) -> int:
    # Of the batch of instance i: prompts as far as they are computed, and what was generated.
    inst = s.instance[i]
    total = 0
    for k in range(inst.n_decode):
        total += kv_tokens(s, i, k)
    for k in range(inst.n_prefill):
        total += s.request[s.prefilling[i, k]].prefilled
    return int(total)


@jitable
def _could_follow(fleet: Fleet, s: Serving, i: int, kind: int) -> bool:
    # Whether every request of instance i fits an instance on a slice of a kind.
    inst = s.instance[i]
    arch = fleet.deployment[inst.model].arch
    capacity = fleet.kv_capacity[arch, kind]
    if place_bytes(fleet, s, i, inst.kv_used) > fleet.kv_capacity_bytes[arch, kind]:
        return False
    slot = int(inst.wait_head)
    while slot >= 0:
        if s.request[slot].prompt + s.request[slot].output > capacity:
            return False
        slot = int(s.request[slot].next)
    return True


@jitable
def _elsewhere(fleet: Fleet, rules: Rules, s: Serving, i: int) -> tuple[int, float]:
    # Where the engine of instance i would cost least to move to, or -1, and what it costs.
    m = int(s.instance[i].model)
    tokens = _tokens(s, i)
    best, best_s = -1, math.inf
    for k in homes_of(fleet, m):
        c = fleet.home_chip[k]
        if s.chip[c].claim >= 0 or not could_hold_weights(fleet, s, k, m):
            continue
        held = s.hold[k].state == HELD
        seconds = move_s(rules.system.preempt, tokens, fleet.weight_bytes[m], held)
        for d in range(s.chip[c].first, s.chip[c].last):
            if d == s.instance[i].on_device or fleet.role[d] == DECODES or seconds >= best_s:
                continue
            j = place_on(fleet, rules, s, m, d)
            if j < 0 or s.instance[j].model == m:
                continue
            if _could_follow(fleet, s, i, s.device[d].kind):
                best, best_s = j, seconds
    return best, best_s


@jitable
def move_for(fleet: Fleet, rules: Rules, s: Serving, m: int, now_s: float) -> bool:
    """Begin to move the cheapest engine for model `m`, which found no slice.

    The model claims the chip until it is placed. Returns True if an engine moves.
    """
    if s.model[m].claim_chip >= 0:
        return False
    head = s.request[s.model[m].wait_head]
    need = head.prompt + head.output
    arch = fleet.deployment[m].arch
    best, best_to, best_s = -1, -1, math.inf
    for k in homes_of(fleet, m):
        c = fleet.home_chip[k]
        if s.chip[c].claim >= 0 or not could_hold_weights(fleet, s, k, m):
            continue
        first, last = instances_of(fleet, s, c)
        for i in range(first, last):
            inst = s.instance[i]
            if inst.state != RUNNING and inst.state != READY:
                continue
            if inst.draining != 0 or inst.comes_from >= 0 or inst.model == m:
                continue
            if fleet.role[inst.on_device] == DECODES:
                continue  # no room for prompts
            if fleet.kv_capacity[arch, inst.kind] < need:
                continue
            to, seconds = _elsewhere(fleet, rules, s, i)
            if to >= 0 and seconds < best_s:
                best, best_to, best_s = i, to, seconds
    if best < 0:
        return False
    inst = s.instance[best]
    moved = int(inst.model)
    inst.draining = 1
    s.count[0].moves += 1
    s.chip[inst.chip].claim = m
    s.model[m].claim_chip = inst.chip
    make_active(fleet, rules, s, moved, best_to, now_s)
    inst.goes_to = best_to
    s.instance[best_to].comes_from = best
    ask(s, s.instance[best_to].on_device)
    return True


@jitable
def has_moved(s: Serving, i: int) -> bool:
    """Return True if the engine of instance `i` has started elsewhere: its requests may follow."""
    j = s.instance[i].goes_to
    if j < 0:
        return False
    state = s.instance[j].state
    return bool(state != FREE and state != ASSIGNED and state != LOADING)


@jitable
def interrupt_for_move(s: Serving, j: int) -> None:
    """Interrupt the steps of an engine whose move target, instance `j`, has started."""
    i = s.instance[j].comes_from
    d = s.instance[i].on_device
    if s.instance[i].state == RUNNING and s.plan[d].steps > 1:
        emit(s, ACT_INTERRUPT, d)


@jitable
def follow(fleet: Fleet, rules: Rules, s: Serving, i: int, now_s: float) -> None:
    """Move the requests of instance `i`, which computes nothing now, to its engine's new slice."""
    inst = s.instance[i]
    j = int(inst.goes_to)
    inst.goes_to = -1
    s.instance[j].comes_from = -1
    set_aside(fleet, rules, s, i, now_s)
    take_pending(fleet, s, inst.model, j)
    if s.instance[j].n_wait > 0:
        wake(fleet, rules, s, j)
    elif s.count[0].pending > 0:
        place_pending(fleet, rules, s, s.instance[j].chip, now_s)  # it was kept for nothing


@jitable
def place_after_moves(fleet: Fleet, rules: Rules, s: Serving, now_s: float) -> None:
    """Place pending models after a move that may have ended without its requests."""
    if s.count[0].moves > 0:
        for c in range(len(s.chip)):
            place_pending(fleet, rules, s, c, now_s)
