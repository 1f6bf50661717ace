"""Routing of requests to active instances of their models."""

from __future__ import annotations

from c2c.cost import cache_places
from c2c.policies import inlined, jitable, may_join, route, wants_another
from c2c.serving.batches.moments import may_begin
from c2c.serving.memory.hbm import movable_bytes, pair_of, quota_bytes, request_bytes, room_bytes
from c2c.serving.placement import device_load_s
from c2c.serving.tables.batch import batch_size, outstanding
from c2c.serving.tables.costs import decode_alone_s, prompt_alone_s, shape_of
from c2c.serving.tables.roles import DECODES
from c2c.serving.tables.state import Fleet, Loop, Serving

__all__ = ["any_active", "has_active", "is_too_busy", "routed"]


@inlined
def _routes(fleet: Fleet, s: Serving, m: int, decodes: bool) -> int:
    n = 0
    i = s.model[m].active
    while i >= 0:
        inst = s.instance[i]
        is_right = (fleet.role[inst.on_device] == DECODES) == decodes
        if is_right and fleet.takes_new[inst.kind] != 0:
            row = s.routes[n]
            row.instance = i
            row.outstanding = outstanding(s, i)
            row.draining = inst.draining
            row.kv_capacity = inst.kv_capacity
            row.alpha = inst.alpha
            row.load_s = device_load_s(fleet, s, inst.on_device) if fleet.residents > 1 else 0.0
            n += 1
        i = inst.next_same
    return n


@jitable
def _find_ends(fleet: Fleet, s: Serving, n: int, slot: int) -> None:
    # When a request would end at each of the first n routes, if no other one came.
    req = s.request[slot]
    for k in range(n):
        i = s.routes[k].instance
        inst, pair = s.instance[i], pair_of(fleet, s, i)
        cached = inst.kv_used + cache_places(req.prompt, shape_of(fleet.costs.reads, pair))
        step_s = decode_alone_s(fleet.costs, pair, outstanding(s, i) + 1, cached)
        prompt_s = prompt_alone_s(fleet.costs, pair, inst.backlog + req.prompt)
        s.routes[k].ends_s = prompt_s + step_s * req.output


@inlined
def routed(w: Loop, m: int, slot: int, decodes: bool) -> int:
    """Return the instance for a request of model `m`; -1: place the model."""
    if w.s.model[m].active < 0:
        return -1
    n = _routes(w.fleet, w.s, m, decodes)
    if w.rules.traits.route.reads_end_times:
        _find_ends(w.fleet, w.s, n, slot)
    tokens = w.s.request[slot].prompt + w.s.request[slot].output
    row = route(w.rules.system.route, w.rules.own.route, w.s.routes, n, tokens)
    return int(w.s.routes[row].instance) if row >= 0 else -1


@inlined
def is_too_busy(w: Loop, i: int, slot: int) -> bool:
    """Return whether instance `i`'s model needs another instance."""
    inst, req = w.s.instance[i], w.s.request[slot]
    backlog_s = inst.backlog * w.fleet.costs.prompt_s[pair_of(w.fleet, w.s, i)]
    need = request_bytes(w.fleet, w.s, i, req.prompt + req.output)
    room = room_bytes(w.s, inst.on_device) + w.s.device[inst.on_device].weight_bytes
    room = quota_bytes(w, i, room + movable_bytes(w.fleet, w.s, i))
    fits = may_join(w.rules.system.admit, need, room, batch_size(w.s, i), w.fleet.max_batch)
    fits = fits and may_begin(w, i, slot)
    return bool(wants_another(w.rules.system.scale, outstanding(w.s, i), backlog_s, not fits))


@jitable
def any_active(fleet: Fleet, s: Serving, m: int, tokens: int) -> int:
    """Return an instance of model `m` with room for so many tokens, or -1."""
    i = s.model[m].active
    while i >= 0:
        inst = s.instance[i]
        only_decodes = fleet.role[inst.on_device] == DECODES
        if inst.draining == 0 and inst.kv_capacity >= tokens and not only_decodes:
            return int(i)
        i = inst.next_same
    return -1


@jitable
def has_active(fleet: Fleet, s: Serving, m: int) -> bool:
    """Return whether a prompt instance of model `m` is active."""
    i = s.model[m].active
    while i >= 0 and fleet.role[s.instance[i].on_device] == DECODES:
        i = s.instance[i].next_same
    return bool(i >= 0)
