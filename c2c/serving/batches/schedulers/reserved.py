"""The default: whole KV caches are reserved on joining."""

from __future__ import annotations

from c2c.policies import (
    Reserved,
    chunk_tokens,
    fill,
    inlined,
    jitable,
    joins,
    prefill_share,
)
from c2c.serving.batches.handover import has_prompt_done, join_come
from c2c.serving.batches.instances import make_room_for
from c2c.serving.batches.moments import place_for, shared_bytes
from c2c.serving.batches.scheduling import admits, join, longest_prompt
from c2c.serving.memory.hbm import (
    could_hold,
    request_bytes,
    room_bytes,
)
from c2c.serving.tables.batch import generated
from c2c.serving.tables.state import Loop, Serving

__all__ = ["fill_reserved", "joins_reserved"]


@jitable
def _is_closed(s: Serving, i: int) -> bool:
    # Whether a sequence of the batch has more than the token that its prompt gave.
    most = 0
    for k in range(s.instance[i].n_decode):
        most = max(most, generated(s, i, k))
    return most > 1


@inlined
def _admit(w: Loop, i: int, now_s: float) -> None:
    inst = w.s.instance[i]
    if w.fleet.hands_directly:
        join_come(w, i)
    if not w.rules.traits.admit.joins_decodes and _is_closed(w.s, i):
        return
    while inst.n_wait > 0:
        is_done = has_prompt_done(w.s, inst.wait_head)
        if w.fleet.hands_directly and is_done:
            return  # its KV cache has not come
        head = w.s.request[inst.wait_head]
        tokens = head.prompt + head.output
        need = request_bytes(w.fleet, w.s, i, tokens)
        if not is_done and need > room_bytes(w.s, inst.on_device):
            need -= shared_bytes(w, i, inst.wait_head)
        if need > room_bytes(w.s, inst.on_device):
            make_room_for(w, i, need, now_s)
        if not admits(w, i, need, room_bytes(w.s, inst.on_device)):
            return
        home = place_for(w, i, inst.wait_head)
        if home < 0:
            return
        join(w, i, tokens, home, now_s)


@inlined
def fill_reserved(w: Loop, i: int, now_s: float, mixes: bool) -> int:
    """Fill the next step of instance `i`; kinds of tokens share it only if it `mixes`."""
    inst = w.s.instance[i]
    if inst.draining == 0:
        _admit(w, i, now_s)
    profiled = w.fleet.chunk[w.fleet.deployment[inst.model].arch, inst.kind]
    decodes = inst.n_decode if mixes else 0
    budget = chunk_tokens(w.rules.system.chunk, profiled, inst.backlog, decodes)
    budget = min(budget, longest_prompt(w))
    prompt_tokens = 0
    for k in range(inst.n_prefill):
        req = w.s.request[w.s.prefilling[i, k]]
        req.step_tokens = prefill_share(budget - prompt_tokens, req.prompt - req.prefilled)
        prompt_tokens += max(0, req.step_tokens)
    w.s.plan[inst.on_device].decodes = inst.n_decode if mixes or prompt_tokens == 0 else 0
    return 1 << 60


@inlined
def joins_reserved(w: Loop, i: int) -> bool:
    """Return whether instance `i`'s queue head has room as a whole."""
    inst = w.s.instance[i]
    head = w.s.request[inst.wait_head]
    need = request_bytes(w.fleet, w.s, i, head.prompt + head.output)
    room = room_bytes(w.s, inst.on_device) - inst.parked_bytes
    if need > room and could_hold(w.fleet, w.s, i, need):
        room = need
    return admits(w, i, need, room)


@fill.by(Reserved)
def _fill(policy: Reserved, w: Loop, i: int, now_s: float) -> int:
    return fill_reserved(w, i, now_s, True)


@joins.by(Reserved)
def _joins(policy: Reserved, w: Loop, i: int) -> bool:
    return joins_reserved(w, i)
