"""Requests of a step report."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from c2c.policies import apart, jitable
from c2c.serving.batches.moments import after_computing
from c2c.serving.batches.records import leave, release_kv, write_record
from c2c.serving.memory.hbm import reserved_places
from c2c.serving.tables.actions import ACT_FORGET, emit
from c2c.serving.tables.batch import (
    batch_size,
    generated,
    member,
    place_among_decodes,
    remove_decode,
    remove_prompt,
    tokens_left,
)
from c2c.serving.tables.state import ENDS_AT, FAIL_NONE, LENGTH, SLOT, Fleet, Loop, Serving

__all__ = [
    "end_in_batch",
    "ends_prompt",
    "gives_up",
    "leave_late",
    "most_steps",
    "not_in_step",
    "shorten",
    "shorten_decode",
    "take_finished",
    "take_leaving",
]


@jitable
def _is_among(finished: Any, request_id: int) -> bool:
    for k in range(len(finished)):  # noqa: SIM110 (a generator is nothing that Numba compiles)
        if finished[k] == request_id:
            return True
    return False


@jitable
def ends_prompt(s: Serving, slot: int) -> bool:
    """Return whether the step ends a request's prompt."""
    req = s.request[slot]
    return bool(req.step_tokens > 0 and req.prefilled + req.step_tokens >= req.prompt)


@jitable
def most_steps(s: Serving, d: int) -> int:
    """Return the most steps that device `d` may report."""
    i = s.plan[d].instance
    if s.plan[d].prefill > 0 or s.instance[i].n_decode == 0:
        return 1
    most = tokens_left(s, i, 0)
    for k in range(1, s.instance[i].n_decode):
        most = min(most, tokens_left(s, i, k))
    return most


@jitable
def not_in_step(s: Serving, d: int, finished: Any) -> int:
    """Return the first finished request outside device `d`'s step, or -1."""
    i = s.plan[d].instance
    for k in range(len(finished)):
        is_there = False
        for j in range(s.plan[d].decodes):
            is_there = is_there or s.request[s.decoding[i, j, SLOT]].id == finished[k]
        for j in range(s.instance[i].n_prefill):
            slot = s.prefilling[i, j]
            is_there = is_there or (s.request[slot].id == finished[k] and ends_prompt(s, slot))
        if not is_there:
            return int(finished[k])
    return -1


@jitable
def take_finished(fleet: Fleet, s: Serving, d: int, finished: Any) -> None:
    """Shorten the requests that a report lists as finished."""
    steps = s.report[d].steps
    i = s.plan[d].instance
    inst = s.instance[i]
    for k in range(s.plan[d].decodes):
        slot = int(s.decoding[i, k, SLOT])
        req = s.request[slot]
        more = tokens_left(s, i, k) - steps
        if _is_among(finished, req.id):
            shorten_decode(fleet, s, i, k, more)
        elif more == 0 and req.ending == FAIL_NONE:
            emit(s, ACT_FORGET, req.id)
    for k in range(inst.n_prefill):
        slot = int(s.prefilling[i, k])
        req = s.request[slot]
        if not ends_prompt(s, slot):
            continue
        if _is_among(finished, req.id):
            shorten(fleet, s, i, slot, req.output - 1)
        elif req.output == 1 and req.ending == FAIL_NONE:
            emit(s, ACT_FORGET, req.id)


@jitable
def shorten_decode(fleet: Fleet, s: Serving, i: int, k: int, tokens: int) -> None:
    """Take tokens from decode `k`'s answer on instance `i`."""
    shorten(fleet, s, i, int(s.decoding[i, k, SLOT]), tokens)
    s.decoding[i, k, ENDS_AT] -= tokens
    s.decoding[i, k, LENGTH] -= tokens


@jitable
def shorten(fleet: Fleet, s: Serving, i: int, slot: int, tokens: int) -> None:
    """Take tokens, and room, from an answer of instance `i`."""
    req = s.request[slot]
    before = reserved_places(fleet, s, i, slot)
    req.output -= tokens
    req.unreserved = max(0, req.unreserved - tokens)
    after = reserved_places(fleet, s, i, slot)
    release_kv(fleet, s, i, slot, before - after)


@jitable
def take_leaving(w: Loop, d: int, finished: Any, now_s: float) -> None:
    """End requests that waited for device `d`'s step."""
    i = w.s.plan[d].instance
    k = 0
    while k < batch_size(w.s, i):
        slot = member(w.s, i, k)
        if w.s.request[slot].ending == FAIL_NONE:
            k += 1
        else:
            _leave(w, slot, finished, now_s)


def gives_up(values: Mapping[type, Any]) -> bool:
    """Return whether requests of the run's fleet have deadlines."""
    return bool(values[Fleet].gives_up)


@apart("leave_late", needed=gives_up)
def leave_late(w: Loop, d: int, now_s: float) -> None:
    """End requests whose deadline passed during device `d`'s step."""
    take_leaving(w, d, w.s.free_slots[:0], now_s)


@jitable
def _leave(w: Loop, slot: int, finished: Any, now_s: float) -> None:
    if not _is_among(finished, w.s.request[slot].id):
        emit(w.s, ACT_FORGET, w.s.request[slot].id)
    end_in_batch(w, slot, now_s)


@jitable
def _note_last(w: Loop, i: int, slot: int) -> None:
    # The backend keeps what the last step of a prompt computed that leaves before its end.
    req = w.s.request[slot]
    req.prefilled += req.step_tokens
    after_computing(w, i, slot)
    req.prefilled -= req.step_tokens


@jitable
def end_in_batch(w: Loop, slot: int, now_s: float) -> None:
    """End a request of a batch, its KV cache unused."""
    req = w.s.request[slot]
    i = req.instance
    inst = w.s.instance[i]
    k = place_among_decodes(w.s, i, slot)
    tokens = 0
    if k >= 0:
        tokens = generated(w.s, i, k)
        remove_decode(w.s, i, k)
    else:
        k = 0
        while w.s.prefilling[i, k] != slot:
            k += 1
        remove_prompt(w.s, i, k)
        _note_last(w, i, slot)
        inst.backlog -= req.prompt - req.prefilled
        if req.prefilled + req.step_tokens == req.reused:
            req.started_s = now_s
            req.from_steps = inst.sum_steps
            req.from_alpha = inst.sum_alpha
            req.from_link = inst.sum_link
            req.from_hbm = inst.sum_hbm
        req.first_token_s = now_s
    leave(w, i, slot)
    req.output = tokens
    w.s.count[0].failed += 1
    write_record(w.s, slot, now_s, req.ending)
