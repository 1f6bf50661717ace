"""HBM of a device."""

from __future__ import annotations

import math

from c2c.policies import (
    goes_before,
    inlined,
    jitable,
    stay_s,
)
from c2c.serving.tables.batch import outstanding
from c2c.serving.tables.costs import held_places
from c2c.serving.tables.state import ASSIGNED, FREE, IDLE, NOWHERE, READY, Fleet, Loop, Serving

__all__ = [
    "capacity_bytes",
    "could_hold",
    "drop_older",
    "drop_weights",
    "holds_on",
    "idle_weight_bytes",
    "is_in_use",
    "keep_layers",
    "kept_bytes",
    "kept_share",
    "largest_other",
    "left_of_stay_s",
    "measure",
    "movable_bytes",
    "only_waits",
    "pair_of",
    "place_bytes",
    "quota_bytes",
    "request_bytes",
    "request_places",
    "reserved_places",
    "room_bytes",
    "room_for_model",
]


@inlined
def pair_of(fleet: Fleet, s: Serving, i: int) -> int:
    """Return instance `i`'s row of the cost tables."""
    inst = s.instance[i]
    return int(fleet.deployment[inst.model].arch * fleet.costs.kinds + inst.kind)


@inlined
def is_in_use(s: Serving, i: int) -> bool:
    """Return whether instance `i` has any request."""
    return outstanding(s, i) > 0


@inlined
def holds_on(fleet: Fleet, s: Serving, i: int) -> bool:
    """Return whether instance `i`, with an empty batch, holds KV that others wait for."""
    return bool(fleet.hands_directly and s.instance[i].kv_used > 0)


@inlined
def request_places(fleet: Fleet, s: Serving, i: int, tokens: int) -> int:
    """Return the KV positions of tokens on instance `i`."""
    return held_places(fleet.costs, pair_of(fleet, s, i), tokens)


@inlined
def reserved_places(fleet: Fleet, s: Serving, i: int, slot: int) -> int:
    """Return the KV positions reserved for a request of instance `i`'s batch."""
    req = s.request[slot]
    return request_places(fleet, s, i, req.prompt + req.output - req.unreserved)


@inlined
def request_bytes(fleet: Fleet, s: Serving, i: int, tokens: int) -> float:
    """Return the KV bytes of tokens on instance `i`."""
    pair = pair_of(fleet, s, i)
    return float(held_places(fleet.costs, pair, tokens) * fleet.costs.kv_bytes[pair])


@inlined
def place_bytes(fleet: Fleet, s: Serving, i: int, places: int) -> float:
    """Return the bytes of KV positions of instance `i`."""
    return float(places * fleet.costs.kv_bytes[pair_of(fleet, s, i)])


@inlined
def capacity_bytes(fleet: Fleet, s: Serving, i: int) -> float:
    """Return instance `i`'s KV bytes, alone on the device."""
    inst = s.instance[i]
    return float(fleet.kv_capacity_bytes[fleet.deployment[inst.model].arch, inst.kind])


@inlined
def _weights_there(fleet: Fleet, s: Serving, i: int) -> float:
    # Weights of instance i in HBM for good, if engines share it with all their weights.
    inst = s.instance[i]
    return float(fleet.shared_weight_bytes[fleet.deployment[inst.model].arch, inst.kind])


@inlined
def _bare_bytes(fleet: Fleet, s: Serving, i: int) -> float:
    # `capacity_bytes` and the weights that it leaves out.
    return capacity_bytes(fleet, s, i) + _weights_there(fleet, s, i)


@jitable
def kept_bytes(fleet: Fleet, s: Serving, i: int) -> float:
    """Return the bytes of instance `i`'s weights in HBM; the head counts to the last layer."""
    inst = s.instance[i]
    arch = fleet.deployment[inst.model].arch
    total = inst.kept * fleet.layer_bytes[arch]
    if inst.kept == fleet.layers[arch]:
        total += fleet.head_bytes[arch]
    return float(total)


@inlined
def _is_there(s: Serving, i: int) -> bool:
    return bool(s.instance[i].state != FREE and s.instance[i].state != NOWHERE)


@jitable
def measure(fleet: Fleet, s: Serving, d: int) -> None:
    """Set device `d`'s capacity for KV caches and kept weights."""
    dev = s.device[d]
    least, weights = math.inf, 0.0
    n = 0
    for i in range(dev.first, dev.first + fleet.residents):
        if _is_there(s, i):
            least = min(least, _bare_bytes(fleet, s, i))
            weights += _weights_there(fleet, s, i)
            n += 1
    dev.residents = n
    dev.capacity_bytes = least - weights - max(0, n - 1) * fleet.engine_bytes if n > 0 else 0.0


@jitable
def room_for_model(fleet: Fleet, s: Serving, d: int, m: int) -> float:
    """Return device `d`'s free HBM with model `m`, without idle engines."""
    dev, arch = s.device[d], fleet.deployment[m].arch
    weights = fleet.shared_weight_bytes[arch, dev.kind]
    least, n = fleet.kv_capacity_bytes[arch, dev.kind] + weights, 0
    for i in range(dev.first, dev.first + fleet.residents):
        if _is_there(s, i) and (s.instance[i].state != IDLE or s.instance[i].kv_used > 0):
            least = min(least, _bare_bytes(fleet, s, i))
            weights += _weights_there(fleet, s, i)
            n += 1
    return float(least - weights - n * fleet.engine_bytes - dev.kv_bytes)


@inlined
def room_bytes(s: Serving, d: int) -> float:
    """Return the free bytes of HBM of device `d`."""
    dev = s.device[d]
    return float(dev.capacity_bytes - dev.kv_bytes - dev.weight_bytes)


@inlined
def movable_bytes(fleet: Fleet, s: Serving, i: int) -> float:
    """Return the net HBM bytes that others' KV could free for instance `i`."""
    inst = s.instance[i]
    host = s.chip[inst.chip].kv_room_bytes + inst.parked_bytes
    if host == 0.0:
        return 0.0
    others = s.device[inst.on_device].kv_bytes
    if inst.kv_used > 0:
        others -= place_bytes(fleet, s, i, inst.kv_used) - inst.parked_bytes
    return float(min(others, host) - inst.parked_bytes)


@jitable
def largest_other(fleet: Fleet, s: Serving, i: int) -> float:
    """Return the largest KV cache in HBM of an engine beside instance `i`."""
    most = 0.0
    first = s.device[s.instance[i].on_device].first
    for j in range(first, first + fleet.residents):
        if j != i and s.instance[j].kv_used > 0:
            most = max(most, place_bytes(fleet, s, j, s.instance[j].kv_used))
    return most


@inlined
def quota_bytes(w: Loop, i: int, room: float) -> float:
    """Return free HBM bytes for instance `i`'s next request."""
    floor, ceiling = w.rules.traits.admit.kv_floor, w.rules.traits.admit.kv_ceiling
    if (floor > 0.0 or ceiling < 1.0) and w.s.instance[i].kv_used > 0:
        return _within(w.fleet, w.s, i, room, floor, ceiling)
    return room


@jitable
def _within(
    fleet: Fleet, s: Serving, i: int, room: float, floor: float, ceiling: float
) -> float:  # fmt: skip
    dev = s.device[s.instance[i].on_device]
    kv_bytes = place_bytes(fleet, s, i, s.instance[i].kv_used)
    rest_bytes = min(room, ceiling * dev.capacity_bytes - kv_bytes)
    for j in range(dev.first, dev.first + fleet.residents):
        if j != i and _is_there(s, j):
            used = place_bytes(fleet, s, j, s.instance[j].kv_used)
            rest_bytes -= max(0.0, floor * dev.capacity_bytes - used)
    return float(rest_bytes)


@inlined
def only_waits(s: Serving, i: int) -> bool:
    """Return whether all of instance `i`'s requests wait, at least one."""
    inst = s.instance[i]
    waits = inst.state == READY or inst.state == ASSIGNED
    return bool(waits and inst.kv_used == 0 and inst.ahead == 0)


@jitable
def could_hold(fleet: Fleet, s: Serving, i: int, need_bytes: float) -> bool:
    """Return whether instance `i` could get so much HBM from weights and idle engines."""
    dev = s.device[s.instance[i].on_device]
    if len(fleet.kv.room_bytes) > 0:  # that lanes share: nothing gives way there
        return bool(need_bytes <= room_bytes(s, s.instance[i].on_device))
    used = dev.kv_bytes - movable_bytes(fleet, s, i)
    largest = largest_other(fleet, s, i) if fleet.kv_host_bytes > 0.0 else 0.0
    if need_bytes <= dev.capacity_bytes - used and largest <= dev.capacity_bytes:
        return True
    least, weights = math.inf, 0.0
    n = 0
    for j in range(dev.first, dev.first + fleet.residents):
        state = s.instance[j].state
        goes = state == IDLE or (dev.kv_bytes == 0.0 and only_waits(s, j))
        goes = goes and s.instance[j].kv_used == 0
        if _is_there(s, j) and (j == i or not goes):
            least = min(least, _bare_bytes(fleet, s, j))
            weights += _weights_there(fleet, s, j)
            n += 1
    room = least - weights - (n - 1) * fleet.engine_bytes
    return bool(need_bytes <= room - used and largest <= room)


@inlined
def kept_share(fleet: Fleet, s: Serving, i: int) -> float:
    """Return instance `i`'s share of layers in HBM."""
    inst = s.instance[i]
    return float(inst.kept / fleet.layers[fleet.deployment[inst.model].arch])


@inlined
def left_of_stay_s(w: Loop, d: int, now_s: float) -> float:
    """Return seconds left of device `d`'s displacing engine; else <= 0."""
    if w.rules.traits.keep.displacing_share == math.inf:
        return 0.0
    holder = w.s.device[d].holder
    if holder < 0 or not is_in_use(w.s, holder):
        return 0.0
    inst = w.s.instance[holder]
    switch_s = w.fleet.switch_s[w.fleet.deployment[inst.model].arch, inst.kind]
    stays_s = stay_s(w.rules.system.turn, switch_s, kept_share(w.fleet, w.s, holder))
    return float(w.s.device[d].held_since_s + stays_s - now_s)


@jitable
def idle_weight_bytes(fleet: Fleet, s: Serving, d: int) -> float:
    """Return idle models' weight bytes in device `d`'s HBM."""
    total = 0.0
    for i in range(s.device[d].first, s.device[d].first + fleet.residents):
        if s.instance[i].state == IDLE and s.instance[i].kept > 0:
            total += kept_bytes(fleet, s, i)
    return total


@inlined
def keep_layers(s: Serving, i: int, layers: int) -> None:
    """Keep so many layers of instance `i` in HBM; 0 also ends its claim on room."""
    s.instance[i].kept = layers
    dev = s.device[s.instance[i].on_device]
    if layers == 0 and dev.holder == i:
        dev.holder = -1


@jitable
def drop_older(fleet: Fleet, s: Serving, i: int, most: int) -> None:
    """Drop kept layers of a device's engines but `i` and the last `most - 1`."""
    dev = s.device[s.instance[i].on_device]
    while True:
        n, oldest = 1, -1
        for j in range(dev.first, dev.first + fleet.residents):
            inst = s.instance[j]
            if j == i or inst.state == FREE or inst.kept == 0:
                continue
            n += 1
            if oldest < 0 or inst.last_used_s < s.instance[oldest].last_used_s:
                oldest = j
        if n <= most:
            return
        dev.weight_bytes -= kept_bytes(fleet, s, oldest)
        keep_layers(s, oldest, 0)


@jitable
def drop_weights(
    w: Loop, d: int, need_bytes: float, idle_only: bool,
    but: int = -1,
) -> None:  # fmt: skip
    """Drop kept layers of device `d`, except `but`'s, until so much HBM is free."""
    dev = w.s.device[d]
    while dev.weight_bytes > 0.0 and room_bytes(w.s, d) < need_bytes:
        victim = -1
        for i in range(dev.first, dev.first + w.fleet.residents):
            inst = w.s.instance[i]
            if i == but or inst.state == FREE or inst.kept == 0:
                continue
            if idle_only and inst.state != IDLE:
                continue
            if victim < 0:
                victim = i
                continue
            best = w.s.instance[victim]
            if is_in_use(w.s, i) != is_in_use(w.s, victim):
                if not is_in_use(w.s, i):
                    victim = i
            elif goes_before(w.rules.system.evict, inst.last_used_s, best.last_used_s):
                victim = i
        if victim < 0:
            return
        inst = w.s.instance[victim]
        before = kept_bytes(w.fleet, w.s, victim)
        layer = w.fleet.layer_bytes[w.fleet.deployment[inst.model].arch]
        missing = need_bytes - room_bytes(w.s, d)
        keep_layers(w.s, victim, max(0, inst.kept - max(1, math.ceil(missing / layer))))
        dev.weight_bytes += kept_bytes(w.fleet, w.s, victim) - before
