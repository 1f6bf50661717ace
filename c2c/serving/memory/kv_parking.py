"""Parking of idle engines' KV caches in host memory."""

from __future__ import annotations

from c2c.policies import inlined, jitable
from c2c.serving.memory.hbm import drop_weights, place_bytes, room_bytes
from c2c.serving.tables.state import Fleet, Loop, Serving

__all__ = ["bring_in", "free_parked", "move_out"]


# Only the bytes that another engine needs are moved: the loop sets how many, the backend chooses
# blocks.
@jitable
def move_out(fleet: Fleet, s: Serving, i: int, missing_bytes: float) -> None:
    """Move others' KV caches to host memory for instance `i`."""
    dev = s.device[s.instance[i].on_device]
    chip, plan = s.chip[dev.chip], s.plan[s.instance[i].on_device]
    rest_bytes = min(missing_bytes, chip.kv_room_bytes)
    for back in range(1, fleet.residents):
        j = dev.first + (i - dev.first - back) % fleet.residents
        other = s.instance[j]
        if rest_bytes <= 0.0:
            return
        if other.kv_used == 0:
            continue
        moved = min(rest_bytes, place_bytes(fleet, s, j, other.kv_used) - other.parked_bytes)
        other.parked_bytes += moved
        dev.kv_bytes -= moved
        chip.kv_room_bytes -= moved
        plan.kv_out_bytes += moved
        rest_bytes -= moved


@jitable
def bring_in(w: Loop, i: int) -> None:
    """Return instance `i`'s KV caches to HBM."""
    inst = w.s.instance[i]
    d = inst.on_device
    w.s.device[d].kv_bytes += inst.parked_bytes
    w.s.chip[inst.chip].kv_room_bytes += inst.parked_bytes
    w.s.plan[d].kv_in_bytes = inst.parked_bytes
    inst.parked_bytes = 0.0
    if room_bytes(w.s, d) < 0.0:
        drop_weights(w, d, 0.0, False)
        move_out(w.fleet, w.s, i, -room_bytes(w.s, d))


@inlined
def free_parked(s: Serving, i: int, freed_bytes: float) -> float:
    """Free instance `i`'s KV caches, parked ones first; return the rest."""
    inst = s.instance[i]
    parked = min(inst.parked_bytes, freed_bytes)
    inst.parked_bytes -= parked
    s.chip[inst.chip].kv_room_bytes += parked
    return float(freed_bytes - parked)
