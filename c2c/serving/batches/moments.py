"""Moments of a request and a device."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from c2c.policies import apart, inlined, jitable, on_request, on_steps, on_timer
from c2c.serving.batches.timers import set_timer
from c2c.serving.memory.adapters import (
    claim_adapter,
    has_adapter_slot,
    plan_adapters,
    release_adapter,
)
from c2c.serving.memory.hbm import place_bytes
from c2c.serving.memory.kv_homes import (
    choose_home,
    count_step,
    settle_memories,
    take_home,
    take_memory,
)
from c2c.serving.memory.kv_parking import bring_in, free_parked
from c2c.serving.memory.prefixes import (
    begin_blocks,
    claim_prefix,
    let_prefix_go,
    note_computed,
    shared_places,
    trim_prefixes,
)
from c2c.serving.tables.actions import ACT_TIMER, emit
from c2c.serving.tables.block_table import clear
from c2c.serving.tables.state import NOBODY, SETTLED, Fleet, Loop, Rules, Serving

__all__ = [
    "after_arrival",
    "after_computing",
    "after_filling",
    "after_freeing",
    "after_steps",
    "at_timer",
    "before_arrival",
    "before_launches",
    "before_plan",
    "before_run",
    "may_begin",
    "on_device_lost",
    "on_host_lost",
    "on_join",
    "on_leave",
    "place_for",
    "shared_bytes",
]


@inlined
def before_arrival(
    w: Loop, slot: int, keys: Any, first: int, count: int, of_prompt: int
) -> None:  # fmt: skip
    """Take a request's block keys into its slot, as `begin_blocks`."""
    if w.fleet.caches_prefixes:
        begin_blocks(w.s, slot, keys, first, count, of_prompt)


@inlined
def after_arrival(w: Loop, slot: int, now_s: float) -> None:
    """Act on a request that was routed, queued, or failed."""
    if w.rules.traits.option.acts:
        _act_on_request(w, slot, now_s)


@inlined
def shared_bytes(w: Loop, i: int, slot: int) -> float:
    """Return a request's KV bytes that its device has."""
    if w.s.request[slot].blocks == 0:
        return 0.0
    return place_bytes(w.fleet, w.s, i, shared_places(w, i, slot))


@inlined
def may_begin(w: Loop, i: int, slot: int) -> bool:
    """Return whether the loop's parts let a waiting request join."""
    return bool(w.fleet.adapters.slots == 0 or has_adapter_slot(w, i, slot))


@inlined
def place_for(w: Loop, i: int, slot: int) -> int:
    """Return the KV home of a joining request, or -1: wait."""
    return choose_home(w, i, slot) if len(w.fleet.kv.room_bytes) > 0 else 0


@inlined
def on_join(w: Loop, i: int, slot: int, home: int, is_done: bool) -> None:
    """Place a joined request's KV cache, shared blocks once."""
    inst = w.s.instance[i]
    if w.fleet.adapters.slots > 0:
        claim_adapter(w, i, slot)
    if w.s.request[slot].blocks > 0 and not is_done:
        shared = claim_prefix(w, i, slot)
        inst.kv_used -= shared
        w.s.device[inst.on_device].kv_bytes -= place_bytes(w.fleet, w.s, i, shared)
    if len(w.fleet.kv.room_bytes) > 0:
        take_home(w, i, slot, home)


@inlined
def after_computing(w: Loop, i: int, slot: int) -> None:
    """Publish what a step has computed of a prompt."""
    if w.s.request[slot].held < w.s.request[slot].prompt_blocks:
        note_computed(w, i, slot)


@inlined
def on_leave(w: Loop, i: int, slot: int, is_done: bool, is_lost: bool) -> int:
    """Release what a request (`is_done`, or `is_lost`) shares; return places left."""
    if w.fleet.adapters.slots > 0:
        release_adapter(w, i, slot)
    if w.s.request[slot].blocks > 0 and (is_done or w.s.request[slot].held > 0):
        return int(let_prefix_go(w, i, slot, is_lost, is_done))
    return 0


@inlined
def after_freeing(fleet: Fleet, s: Serving, i: int, slot: int, places: int) -> float:
    """Free a request's places outside HBM; return the bytes in HBM."""
    freed = place_bytes(fleet, s, i, places)
    if s.instance[i].parked_bytes > 0.0:
        freed = free_parked(s, i, freed)
    if len(fleet.kv.room_bytes) > 0:
        take_memory(fleet, s, i, slot, -places)  # of a token each
    return freed


@inlined
def before_launches(w: Loop) -> None:
    """Propagate the room that an event has freed."""
    if len(w.fleet.kv.room_bytes) > 0:
        settle_memories(w)


@inlined
def before_plan(w: Loop, i: int) -> None:
    """Bring KV caches of instance `i`, planned next, to HBM."""
    if w.s.instance[i].parked_bytes > 0.0:
        bring_in(w, i)


@inlined
def after_filling(w: Loop, i: int) -> None:
    """Add to instance `i`'s next step, whose rows are chosen."""
    if len(w.fleet.adapters.nbytes) > 0:
        plan_adapters(w, i)


@inlined
def before_run(w: Loop, i: int) -> None:
    """Make room for instance `i`'s load or steps; count steps by home."""
    d = w.s.instance[i].on_device
    if w.s.blocks.pool[d].idle_bytes > 0.0:
        trim_prefixes(w, d)
    if w.fleet.opens_all:
        count_step(w, i)


@inlined
def after_steps(w: Loop, d: int, now_s: float) -> None:
    """Act after steps of device `d`."""
    if w.rules.traits.option.acts:
        _act_on_steps(w, d, now_s)


@inlined
def at_timer(w: Loop, now_s: float) -> None:
    """Act at a time that was asked for."""
    if w.rules.traits.option.acts:
        _act_on_timer(w, now_s)


def on_host_lost(s: Serving, c: int) -> None:
    """Clear what the host memory of chip `c` held."""
    clear(s.blocks, len(s.device) + c)


def on_device_lost(s: Serving, d: int) -> None:
    """Clear what device `d` held."""
    clear(s.blocks, d)
    s.taken[d], s.relayout[d].state = 0.0, SETTLED


def _acts(values: Mapping[type, Any]) -> bool:
    return bool(values[Rules].traits.option.acts)


@jitable
def _ask_timer(w: Loop, due_s: float) -> None:
    count = w.s.count[0]
    is_idle = count.arrived == count.finished + count.failed
    is_idle = is_idle and not w.rules.traits.option.acts_when_idle
    if due_s < w.s.timer_s[0] and not is_idle:
        set_timer(w.s, 0, due_s)
        emit(w.s, ACT_TIMER, 0)


@apart("act_on_request", needed=_acts)
def _act_on_request(w: Loop, slot: int, now_s: float) -> None:
    if w.s.request[slot].id != NOBODY:  # it has not failed at once
        _ask_timer(w, on_request(w.rules.system.option, w.rules.own.option, w, slot, now_s))


@apart("act_on_steps", needed=_acts)
def _act_on_steps(w: Loop, d: int, now_s: float) -> None:
    _ask_timer(w, on_steps(w.rules.system.option, w.rules.own.option, w, d, now_s))


@apart("act_on_timer", needed=_acts)
def _act_on_timer(w: Loop, now_s: float) -> None:
    count = w.s.count[0]
    there = count.arrived - count.finished - count.failed
    _ask_timer(w, on_timer(w.rules.system.option, w.rules.own.option, w, there, now_s))
