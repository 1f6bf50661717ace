"""Adapters over a shared base."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from c2c.policies import apart, jitable
from c2c.serving.tables.optional_tables import AdapterSlots
from c2c.serving.tables.state import SLOT, Fleet, Loop

__all__ = ["claim_adapter", "forget_adapters", "has_adapter_slot", "new_slots", "plan_adapters",
           "release_adapter"]  # fmt: skip


def _has_adapters(values: Mapping[type, Any]) -> bool:
    return len(values[Fleet].adapters.nbytes) > 0


def _has_slots(values: Mapping[type, Any]) -> bool:
    return bool(values[Fleet].adapters.slots > 0)


@jitable
def _slot_of(w: Loop, i: int, m: int) -> int:
    # The slot of adapter m on instance i, or the one that it may take; -1: all are in use.
    slots, best = w.s.adapters, -1
    for k in range(w.fleet.adapters.slots):
        if slots.model[i, k] == m:
            return k
        is_free = slots.users[i, k] == 0
        if is_free and (best < 0 or slots.used_at[i, k] < slots.used_at[i, best]):
            best = k
    return best


@apart("has_adapter_slot", needed=_has_slots)
def has_adapter_slot(w: Loop, i: int, slot: int) -> bool:
    """Return whether a waiting request's adapter has a slot on instance `i`."""
    m = w.s.request[slot].entry
    return bool(w.fleet.adapters.nbytes[m] == 0.0 or _slot_of(w, i, m) >= 0)


# With slots, an adapter is copied over the link into HBM with the first step that has a request of
# it, and stays until another needs the slot; a request waits at the head of its queue while all
# slots are in use. Without slots, each step reads the adapters of its rows over the link.
@apart("claim_adapter", needed=_has_slots)
def claim_adapter(w: Loop, i: int, slot: int) -> int:
    """Take a joining request's slot from the least recently claimed adapter."""
    m, slots = w.s.request[slot].entry, w.s.adapters
    if w.fleet.adapters.nbytes[m] == 0.0:
        return 0
    k = _slot_of(w, i, m)
    if slots.model[i, k] != m:
        slots.model[i, k] = m
        slots.coming_bytes[i] += w.fleet.adapters.nbytes[m]
    slots.users[i, k] += 1
    slots.clock[0] += 1
    slots.used_at[i, k] = slots.clock[0]
    return 0


@apart("release_adapter", needed=_has_slots)
def release_adapter(w: Loop, i: int, slot: int) -> int:
    """Note that a request has left instance `i`; its adapter stays."""
    m, slots = w.s.request[slot].entry, w.s.adapters
    for k in range(w.fleet.adapters.slots):
        if slots.model[i, k] == m:
            slots.users[i, k] -= 1
    return 0


@jitable
def forget_adapters(w: Loop, i: int) -> None:
    """Clear instance `i`'s slots, for a model."""
    for k in range(w.fleet.adapters.slots):
        w.s.adapters.model[i, k] = -1
        w.s.adapters.users[i, k] = 0
        w.s.adapters.used_at[i, k] = 0
    w.s.adapters.coming_bytes[i] = 0.0


@jitable
def _add_rows(w: Loop, d: int, slot: int, kind: int, tokens: int) -> float:
    # Add a request's rows to the plan; return its adapter's bytes unless the step has counted them.
    m, slots, costs = w.s.request[slot].entry, w.s.adapters, w.fleet.adapters
    if costs.nbytes[m] == 0.0:
        return 0.0
    w.s.plan[d].adapter_s += costs.token_s[m, kind] * tokens
    w.s.plan[d].adapter_hbm_bytes += costs.token_bytes[m] * tokens
    if slots.counted_at[m] == slots.clock[0]:
        return 0.0
    slots.counted_at[m] = slots.clock[0]
    return float(costs.nbytes[m])


@apart("plan_adapters", needed=_has_adapters)
def plan_adapters(w: Loop, i: int) -> int:
    """Add adapters' cost to instance `i`'s next step."""
    inst, slots, costs = w.s.instance[i], w.s.adapters, w.fleet.adapters
    d, kind = inst.on_device, inst.kind
    plan = w.s.plan[d]
    plan.adapter_s, plan.adapter_link_bytes, plan.adapter_hbm_bytes = 0.0, 0.0, 0.0
    slots.clock[0] += 1
    nbytes = 0.0
    for k in range(inst.n_prefill):
        slot = w.s.prefilling[i, k]
        if w.s.request[slot].step_tokens > 0:
            nbytes += _add_rows(w, d, slot, kind, w.s.request[slot].step_tokens)
    for k in range(plan.decodes):
        nbytes += _add_rows(w, d, w.s.decoding[i, k, SLOT], kind, 1)
    plan.adapter_link_bytes = nbytes
    if nbytes > 0.0:
        plan.adapter_s += costs.launch_s[w.fleet.deployment[inst.model].arch, kind]
    if costs.slots > 0:
        plan.adapter_link_bytes = slots.coming_bytes[i]
        plan.adapter_hbm_bytes += nbytes + slots.coming_bytes[i]
        plan.adapter_s += nbytes / costs.hbm_rate[kind]
        if slots.coming_bytes[i] > 0.0:
            plan.steps = 1  # the next ones copy nothing
            slots.coming_bytes[i] = 0.0
    plan.adapter_s += plan.adapter_link_bytes / costs.link_rate[kind]
    return 0


def new_slots(instances: int, fleet: Fleet) -> AdapterSlots:
    """Return empty slots."""
    shape = (instances, fleet.adapters.slots)
    return AdapterSlots(
        model=np.full(shape, -1, np.int64),
        users=np.zeros(shape, np.int64),
        used_at=np.zeros(shape, np.int64),
        coming_bytes=np.zeros(instances),
        counted_at=np.zeros(len(fleet.adapters.nbytes), np.int64),
        clock=np.zeros(1, np.int64),
    )
