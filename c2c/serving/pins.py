"""Pinning of weights in host memory by an operator: load, pin, unpin, drop.

Only a live engine offers this, so nothing here is compiled.
"""

from __future__ import annotations

from c2c.serving.instances import evict, idle_victim
from c2c.serving.placement import place_pending
from c2c.serving.pools import (
    arrived,
    can_hold,
    could_hold_weights,
    entry_of,
    hold,
    instances_of,
    let_go,
    never_came,
)
from c2c.serving.state import ABSENT, HELD, IDLE, Fleet, Rules, Serving

__all__ = ["drop_weights_of", "keep_weights_of", "release_weights_of", "take_weights_of"]


def keep_weights_of(fleet: Fleet, rules: Rules, s: Serving, m: int, c: int, now_s: float) -> bool:
    """Pin the weights of model `m` in the memory of chip `c`; return True if there is room.

    Idle instances are evicted, as for a model with requests.
    """
    k = entry_of(fleet, m, c)
    if k < 0 or not could_hold_weights(fleet, s, k, m):
        return False
    first, last = instances_of(fleet, s, c)
    while not can_hold(fleet, s, k, m):
        victim = idle_victim(rules, s, first, last, -1)
        if victim < 0:
            return False
        evict(fleet, s, victim, now_s)
    hold(fleet, rules, s, k, m, now_s)
    return True


def take_weights_of(fleet: Fleet, s: Serving, m: int, c: int) -> None:
    """Record that requested weights are in memory, with no instance waiting for them."""
    k = entry_of(fleet, m, c)
    if s.hold[k].state != ABSENT:
        arrived(s, k)


def release_weights_of(
    fleet: Fleet, rules: Rules, s: Serving, m: int, c: int, now_s: float
) -> None:
    """Unpin the weights of a model; a load that has not ended is no longer requested."""
    k = entry_of(fleet, m, c)
    never_came(fleet, s, k, m)
    let_go(fleet, s, k, m, now_s)
    place_pending(fleet, rules, s, c, now_s)


def drop_weights_of(fleet: Fleet, rules: Rules, s: Serving, m: int, c: int, now_s: float) -> bool:
    """Free the weights of model `m` unless something needs them; return True if they are gone."""
    k = entry_of(fleet, m, c)
    first, last = instances_of(fleet, s, c)
    mine = [i for i in range(first, last) if s.instance[i].model == m]
    if s.hold[k].pins != len(mine) or any(s.instance[i].state != IDLE for i in mine):
        return False
    for i in mine:
        evict(fleet, s, i, now_s)
    if s.hold[k].state == HELD:
        s.hold[k].state = ABSENT
        s.chip[c].free_bytes += fleet.weight_bytes[m]
        s.count[0].dropped += 1
        place_pending(fleet, rules, s, c, now_s)
    return True
