"""Host memory of a chip."""

from __future__ import annotations

from c2c.policies import goes_before, inlined, jitable
from c2c.serving.tables.state import ABSENT, COMING, HELD, IDLE, Fleet, Loop, Serving

__all__ = [
    "arrived",
    "can_hold",
    "could_hold_weights",
    "entry_of",
    "hold",
    "homes_of",
    "instances_of",
    "let_go",
    "never_came",
]


@inlined
def homes_of(fleet: Fleet, m: int) -> range:
    """Return model `m`'s range in the list of homes."""
    return range(fleet.home_first[m], fleet.home_first[m + 1])


@inlined
def instances_of(fleet: Fleet, s: Serving, c: int) -> tuple[int, int]:
    """Return the first instance of chip `c`, and one past its last."""
    chip = s.chip[c]
    first = s.device[chip.first].first
    return first, first + (chip.last - chip.first) * fleet.residents


@jitable
def entry_of(fleet: Fleet, m: int, c: int) -> int:
    """Return (model, chip)'s index in the list of homes, or -1."""
    for k in homes_of(fleet, m):
        if fleet.home_chip[k] == c:
            return int(k)
    return -1


@jitable
def can_hold(fleet: Fleet, s: Serving, k: int, m: int) -> bool:
    """Return whether model `m`'s weights are, or fit, in a chip's memory."""
    if s.hold[k].state != ABSENT:
        return True
    chip = s.chip[fleet.home_chip[k]]
    return bool(chip.host_bytes - chip.pinned_bytes >= fleet.weight_bytes[m])


@jitable
def could_hold_weights(fleet: Fleet, s: Serving, k: int, m: int) -> bool:
    """Return whether `can_hold` would after evictions."""
    if can_hold(fleet, s, k, m):
        return True
    chip = s.chip[fleet.home_chip[k]]
    room = chip.host_bytes - chip.pinned_bytes
    first, last = instances_of(fleet, s, fleet.home_chip[k])
    for i in range(first, last):
        if s.instance[i].state == IDLE:
            other = s.instance[i].model
            entry = entry_of(fleet, other, fleet.home_chip[k])
            if s.hold[entry].pins == _idle_from(s, other, i, last):  # none busy, none before i
                room += fleet.weight_bytes[other]
    return bool(room >= fleet.weight_bytes[m])


@jitable
def _idle_from(s: Serving, m: int, first: int, last: int) -> int:
    n = 0
    for i in range(first, last):
        if s.instance[i].state == IDLE and s.instance[i].model == m:
            n += 1
    return n


@jitable
def hold(w: Loop, k: int, m: int, now_s: float) -> bool:
    """Pin model `m`'s weights, evicting others; return whether they come from disk."""
    entry = w.s.hold[k]
    chip = w.s.chip[w.fleet.home_chip[k]]
    entry.last_used_s = now_s
    if entry.pins == 0:
        chip.pinned_bytes += w.fleet.weight_bytes[m]
    entry.pins += 1
    if entry.state != ABSENT:
        return bool(entry.state == COMING)
    while chip.free_bytes < w.fleet.weight_bytes[m]:
        victim = -1
        c = w.fleet.home_chip[k]
        for j in range(w.fleet.chip_first[c], w.fleet.chip_first[c + 1]):
            other = w.fleet.chip_home[j]
            if w.s.hold[other].state != HELD or w.s.hold[other].pins > 0:
                continue
            if victim < 0 or goes_before(
                w.rules.system.evict, w.s.hold[other].last_used_s, w.s.hold[victim].last_used_s
            ):
                victim = other
        if victim < 0:
            break
        w.s.hold[victim].state = ABSENT
        chip.free_bytes += w.fleet.weight_bytes[w.fleet.home_model[victim]]
        w.s.count[0].dropped += 1
    chip.free_bytes -= w.fleet.weight_bytes[m]
    entry.state = COMING
    return True


@jitable
def arrived(s: Serving, k: int) -> None:
    """Record that weights read from disk are in memory."""
    s.hold[k].state = HELD


@jitable
def never_came(fleet: Fleet, s: Serving, k: int, m: int) -> None:
    """Release the pin of an instance that leaves during its read."""
    if s.hold[k].state == COMING and s.hold[k].pins == 1:
        s.hold[k].state = ABSENT
        s.chip[fleet.home_chip[k]].free_bytes += fleet.weight_bytes[m]


@jitable
def let_go(fleet: Fleet, s: Serving, k: int, m: int, now_s: float) -> None:
    """Unpin model `m`'s weights after its instance left."""
    entry = s.hold[k]
    entry.pins -= 1
    entry.last_used_s = now_s
    if entry.pins == 0:
        s.chip[fleet.home_chip[k]].pinned_bytes -= fleet.weight_bytes[m]
