"""Pinning of weights in host memory by an operator."""

from __future__ import annotations

from c2c.serving.batches.instances import evict, idle_victim
from c2c.serving.placement import place_pending
from c2c.serving.tables.pools import (
    arrived,
    can_hold,
    could_hold_weights,
    entry_of,
    hold,
    instances_of,
    let_go,
    never_came,
)
from c2c.serving.tables.state import ABSENT, HELD, IDLE, Fleet, Loop, Serving

__all__ = ["drop_weights_of", "keep_weights_of", "release_weights_of", "take_weights_of"]


def keep_weights_of(w: Loop, m: int, c: int, now_s: float) -> bool:
    """Pin model `m`'s weights on chip `c`; return whether there is room."""
    k = entry_of(w.fleet, m, c)
    if k < 0 or not could_hold_weights(w.fleet, w.s, k, m):
        return False
    first, last = instances_of(w.fleet, w.s, c)
    while not can_hold(w.fleet, w.s, k, m):
        victim = idle_victim(w.rules, w.s, first, last, -1)
        if victim < 0:
            return False
        evict(w.fleet, w.s, victim, now_s)
    hold(w, k, m, now_s)
    return True


def take_weights_of(fleet: Fleet, s: Serving, m: int, c: int) -> None:
    """Record requested weights in memory, without an instance."""
    k = entry_of(fleet, m, c)
    if s.hold[k].state != ABSENT:
        arrived(s, k)


def release_weights_of(w: Loop, m: int, c: int, now_s: float) -> None:
    """Unpin a model's weights, and its load."""
    k = entry_of(w.fleet, m, c)
    never_came(w.fleet, w.s, k, m)
    let_go(w.fleet, w.s, k, m, now_s)
    place_pending(w, c, now_s)


def drop_weights_of(w: Loop, m: int, c: int, now_s: float) -> bool:
    """Free model `m`'s unneeded weights; return whether gone."""
    k = entry_of(w.fleet, m, c)
    first, last = instances_of(w.fleet, w.s, c)
    mine = [i for i in range(first, last) if w.s.instance[i].model == m]
    if w.s.hold[k].pins != len(mine) or any(w.s.instance[i].state != IDLE for i in mine):
        return False
    for i in mine:
        evict(w.fleet, w.s, i, now_s)
    if w.s.hold[k].state == HELD:
        w.s.hold[k].state = ABSENT
        w.s.chip[c].free_bytes += w.fleet.weight_bytes[m]
        w.s.count[0].dropped += 1
        place_pending(w, c, now_s)
    return True
