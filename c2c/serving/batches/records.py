"""Ends of requests: records, and release of memory."""

from __future__ import annotations

from c2c.policies import inlined, jitable
from c2c.serving.batches.moments import after_freeing, on_leave
from c2c.serving.batches.queues import release_slot
from c2c.serving.memory.hbm import reserved_places
from c2c.serving.tables.state import FAIL_NONE, Fleet, Loop, Serving

__all__ = ["fail", "finish", "leave", "release_kv", "write_record"]


@inlined
def write_record(s: Serving, slot: int, now_s: float, failure: int) -> None:
    """Write an ending request's record and free its slot."""
    req = s.request[slot]
    out = s.records[s.count[0].out]
    s.count[0].out += 1
    out.id = req.id
    out.model = req.entry
    out.prompt_tokens = req.prompt - req.carried
    out.output_tokens = req.output + req.carried
    out.instance = req.instance
    out.failure = failure
    out.start_kind = req.start_kind
    out.chunks = req.chunks
    out.cached_hbm_tokens, out.cached_host_tokens = req.found_hbm, req.found_host
    out.arrival_s = req.arrival_s
    out.admitted_s = req.admitted_s
    out.started_s = req.started_s
    out.first_token_s = req.first_token_s
    out.finished_s = now_s
    if req.carried > 0:
        out.admitted_s = req.was_admitted_s
        out.started_s = req.was_started_s
        out.first_token_s = req.was_first_token_s
    if req.instance >= 0:
        inst = s.instance[req.instance]
        out.slice = inst.on_device
        out.chip = inst.chip
        steps = inst.sum_steps - req.from_steps
        out.alpha_mean = (inst.sum_alpha - req.from_alpha) / steps if steps > 0.0 else 0.0
        out.link_bytes = inst.sum_link - req.from_link
        out.hbm_bytes = inst.sum_hbm - req.from_hbm
    else:
        out.slice = -1
        out.chip = -1
        out.alpha_mean = 0.0
        out.link_bytes = 0.0
        out.hbm_bytes = 0.0
    release_slot(s, slot)


@jitable
def fail(s: Serving, slot: int, now_s: float, reason: int) -> None:
    """Fail a request outside queues."""
    req = s.request[slot]
    req.instance = -1
    req.admitted_s = now_s
    req.started_s = now_s
    req.first_token_s = now_s
    s.count[0].failed += 1
    write_record(s, slot, now_s, reason)


@inlined
def release_kv(fleet: Fleet, s: Serving, i: int, slot: int, places: int) -> None:
    """Free KV positions reserved by a request on instance `i`."""
    s.instance[i].kv_used -= places
    s.device[s.instance[i].on_device].kv_bytes -= after_freeing(fleet, s, i, slot, places)


@inlined
def leave(w: Loop, i: int, slot: int, is_done: bool = False) -> None:
    """Free a request's KV cache on instance `i`."""
    places = reserved_places(w.fleet, w.s, i, slot)
    places -= on_leave(w, i, slot, is_done, False)
    release_kv(w.fleet, w.s, i, slot, places)


@inlined
def finish(w: Loop, i: int, slot: int, now_s: float) -> None:
    """End a served request of instance `i` outside batches."""
    leave(w, i, slot, True)
    w.s.count[0].finished += 1
    write_record(w.s, slot, now_s, FAIL_NONE)
