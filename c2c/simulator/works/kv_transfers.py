"""Transfers of KV caches."""

from __future__ import annotations

from c2c.policies import apart, jitable
from c2c.serving.batches.handover import goes_directly
from c2c.serving.tables.state import Loop, Serving
from c2c.simulator.works.events import replay
from c2c.simulator.works.wires import drop, put_on, take_off
from c2c.simulator.works.world import ENDS, Machine, World

__all__ = ["clear_wire", "drop_sent", "has_come", "move_kv", "send_kv"]


@jitable
def send_kv(machine: Machine, state: Serving, world: World, slot: int, now_s: float) -> None:
    """Send a handed-over request's KV cache off its chip, after earlier ones."""
    req = state.request[slot]
    source, target = state.device[req.source], state.instance[req.instance]
    if len(world.wires.wire) > 0:
        rate = machine.between
        if source.chip == target.chip:
            rate = min(machine.link_cap[source.kind], machine.link_cap[target.kind])
        size, n = req.handed_bytes, len(state.device)
        world.end_s[n + req.source] = put_on(
            world.wires, req.source, slot, req.id, target.on_device, size, size / rate, now_s
        )
        _note(state, world, req.source)
        world.phase[req.source].total_hbm += size
        world.phase[req.source].total_kv_out += size
        return
    rate = machine.link_cap[source.kind]
    if source.chip != target.chip:
        rate = min(rate, machine.between)
    link = world.link[source.chip]
    link.sent_s = max(link.sent_s, now_s) + req.handed_bytes / rate
    world.due_s[req.instance] = max(world.due_s[req.instance], link.sent_s)
    p = world.phase[req.source]
    p.total_hbm += req.handed_bytes
    p.total_kv_out += req.handed_bytes


@jitable
def has_come(state: Serving, world: World, d: int) -> int:
    """Return the slot of the request whose KV cache from `d` arrived."""
    slot, target, size, next_s = take_off(world.wires, d)
    world.end_s[len(state.device) + d] = next_s
    _note(state, world, d)
    world.phase[target].total_hbm += size
    world.phase[target].total_kv_in += size
    return slot


@apart("drop_sent", needed=goes_directly)
def drop_sent(w: Loop, world: World, request_id: int) -> None:
    """Drop an unwanted KV cache from the wires."""
    for d in range(len(world.wires.wire)):
        clear_wire(w.s, world, d, request_id)


@jitable
def clear_wire(state: Serving, world: World, d: int, request_id: int) -> None:
    """Drop a request's KV cache, or EVERYBODY's, from device `d`'s wire."""
    c = state.device[d].chip
    chip, devices = state.chip[c], len(state.device)
    world.end_s[devices + d] = drop(world.wires, d, request_id)
    replay(world.tournament, c, world.end_s, chip.first, chip.last, devices)


@jitable
def _note(state: Serving, world: World, d: int) -> None:
    link = world.link[state.device[d].chip]
    link.dirty = max(link.dirty, ENDS)


@jitable
def move_kv(
    machine: Machine, state: Serving, world: World, d: int, copied_s: float, now_s: float
) -> None:
    """Move KV caches to and from host memory before device `d`'s step or load."""
    p, plan, cap = world.phase[d], state.plan[d], machine.link_cap[state.device[d].kind]
    moved_s = max(plan.kv_in_bytes, plan.kv_out_bytes - copied_s * cap) / cap
    p.base_s += moved_s
    if plan.kv_in_bytes > 0.0:  # block by block: what still comes to host memory is waited for
        p.base_s += max(0.0, world.due_s[plan.instance] - (now_s + copied_s + moved_s))
    p.link_bytes += plan.kv_in_bytes
    p.hbm_bytes += plan.kv_in_bytes + plan.kv_out_bytes
    p.total_kv_in += plan.kv_in_bytes
    p.total_kv_out += plan.kv_out_bytes
