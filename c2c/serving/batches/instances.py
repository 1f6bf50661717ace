"""Assignment of models to instances of a device."""

from __future__ import annotations

from c2c.policies import goes_before, jitable
from c2c.serving.batches.queues import return_waiting
from c2c.serving.memory.adapters import forget_adapters
from c2c.serving.memory.hbm import (
    could_hold,
    drop_weights,
    keep_layers,
    kept_bytes,
    largest_other,
    measure,
    only_waits,
    room_bytes,
)
from c2c.serving.memory.kv_parking import move_out
from c2c.serving.tables.actions import ACT_UNLOAD, emit
from c2c.serving.tables.pools import entry_of, hold, let_go, never_came
from c2c.serving.tables.state import ASSIGNED, FREE, IDLE, Fleet, Loop, Rules, Serving

__all__ = ["assign", "evict", "idle_victim", "make_room_for", "take_back_start", "vacate"]


@jitable
def assign(w: Loop, m: int, i: int, now_s: float) -> None:
    """Assign free instance `i` to model `m`, loaded at its turn."""
    inst = w.s.instance[i]
    inst.model = m
    inst.state = ASSIGNED
    inst.draining = 0
    inst.aside = 0
    inst.ahead = 0
    inst.cold = 1 if hold(w, entry_of(w.fleet, m, inst.chip), m, now_s) else 0
    inst.last_used_s = now_s
    inst.kv_used = 0
    inst.kept = 0
    inst.kv_capacity = w.fleet.kv_capacity[w.fleet.deployment[m].arch, inst.kind]
    inst.next_same = w.s.model[m].active
    w.s.model[m].active = i
    inst.alpha = w.rules.traits.alpha.initial
    forget_adapters(w, i)
    inst.seen_latency_s = -1.0  # no sample yet
    measure(w.fleet, w.s, inst.on_device)
    if w.s.device[inst.on_device].residents == 1:
        w.s.report[inst.on_device].available_gbps = w.s.chip[inst.chip].budget_gbps
    w.s.count[0].switches += 1
    w.s.count[0].cold_starts += inst.cold


@jitable
def vacate(fleet: Fleet, s: Serving, i: int, now_s: float) -> None:
    """Remove the model of instance `i`, without requests."""
    inst = s.instance[i]
    dev = s.device[inst.on_device]
    model = s.model[inst.model]
    if model.active == i:
        model.active = inst.next_same
    else:
        before = model.active
        while s.instance[before].next_same != i:
            before = s.instance[before].next_same
        s.instance[before].next_same = inst.next_same
    dev.weight_bytes -= kept_bytes(fleet, s, i)
    let_go(fleet, s, entry_of(fleet, inst.model, inst.chip), inst.model, now_s)
    keep_layers(s, i, 0)
    inst.next_same = -1
    inst.model = -1
    inst.state = FREE
    inst.draining = 0
    if dev.last == i:
        dev.last = -1
    measure(fleet, s, inst.on_device)


@jitable
def take_back_start(fleet: Fleet, s: Serving, i: int, now_s: float) -> None:
    """Remove the model from instance `i` before its load."""
    inst = s.instance[i]
    never_came(fleet, s, entry_of(fleet, inst.model, inst.chip), int(inst.model))
    s.count[0].switches -= 1
    s.count[0].cold_starts -= inst.cold
    vacate(fleet, s, i, now_s)


@jitable
def evict(fleet: Fleet, s: Serving, i: int, now_s: float) -> None:
    """Evict idle instance `i` and its kept weights from HBM."""
    vacate(fleet, s, i, now_s)
    s.count[0].evictions += 1
    emit(s, ACT_UNLOAD, i)


@jitable
def idle_victim(rules: Rules, s: Serving, first: int, last: int, but: int) -> int:
    """Return the idle instance of [first, last) to evict, other than `but`, or -1."""
    best = -1
    for i in range(first, last):
        if i == but or s.instance[i].state != IDLE:
            continue
        if best < 0 or goes_before(
            rules.system.evict, s.instance[i].last_used_s, s.instance[best].last_used_s
        ):
            best = i
    return best


@jitable
def _waits_youngest(fleet: Fleet, s: Serving, d: int, but: int) -> int:
    # Of the engines of device d that only wait, other than `but`, the one that began last.
    best = -1
    for i in range(s.device[d].first, s.device[d].first + fleet.residents):
        if i == but or not only_waits(s, i):
            continue
        head = s.request[s.instance[i].wait_head]
        if best < 0 or head.arrival_s > s.request[s.instance[best].wait_head].arrival_s:
            best = i
    return best


@jitable
def _let_one_go(w: Loop, d: int, but: int, now_s: float) -> bool:
    # Free the place of an engine on device d that `could_hold` counts as one that may go.
    dev = w.s.device[d]
    victim = idle_victim(w.rules, w.s, dev.first, dev.first + w.fleet.residents, but)
    if victim < 0 and dev.kv_bytes == 0.0:
        victim = _waits_youngest(w.fleet, w.s, d, but)
    if victim < 0:
        return False
    return_waiting(w.fleet, w.s, victim)
    if w.s.instance[victim].state == ASSIGNED:
        take_back_start(w.fleet, w.s, victim, now_s)
    else:
        evict(w.fleet, w.s, victim, now_s)
    return True


@jitable
def _is_short(fleet: Fleet, s: Serving, i: int) -> bool:
    # Whether an engine beside instance i could not bring all its KV caches back to HBM any more.
    if fleet.kv_host_bytes == 0.0:
        return False
    needed = largest_other(fleet, s, i)
    return bool(needed > 0.0 and needed > s.device[s.instance[i].on_device].capacity_bytes)


@jitable
def make_room_for(w: Loop, i: int, need_bytes: float, now_s: float) -> None:
    """Free HBM for instance `i`."""
    d = w.s.instance[i].on_device
    is_short = _is_short(w.fleet, w.s, i)
    fits = need_bytes <= room_bytes(w.s, d) and not is_short
    if fits or not could_hold(w.fleet, w.s, i, need_bytes):
        return
    drop_weights(w, d, need_bytes, False)
    while is_short:
        if not _let_one_go(w, d, i, now_s):
            return
        is_short = _is_short(w.fleet, w.s, i)
    move_out(w.fleet, w.s, i, need_bytes - room_bytes(w.s, d))
    while room_bytes(w.s, d) < need_bytes:
        if not _let_one_go(w, d, i, now_s):
            return
