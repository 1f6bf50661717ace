"""Rows of requests that come."""

from __future__ import annotations

import math

from c2c.policies import inlined, jitable, rank
from c2c.serving.batches.queues import take_slot
from c2c.serving.tables.pools import homes_of
from c2c.serving.tables.roles import DECODES
from c2c.serving.tables.state import (
    FAIL_DEVICE,
    FAIL_KV,
    FAIL_MEMORY,
    FAIL_NONE,
    IN_SERVICE,
    Fleet,
    Loop,
    Serving,
)

__all__ = ["largest_kv", "new_request", "why_unservable"]


@jitable
def largest_kv(fleet: Fleet, s: Serving, m: int, enough: int) -> int:
    """Return a device's most KV tokens for `m`'s prompts, up to `enough`; -1: none."""
    largest = -1
    for k in homes_of(fleet, m):
        chip = s.chip[fleet.home_chip[k]]
        for d in range(chip.first, chip.last):
            if s.device[d].service != IN_SERVICE or fleet.role[d] == DECODES:
                continue
            capacity = fleet.kv_capacity[fleet.deployment[m].arch, s.device[d].kind]
            largest = max(largest, capacity)
            if largest >= enough:
                return int(largest)
    return largest


@inlined
def new_request(
    w: Loop,
    now_s: float,
    request_id: int,
    m: int,
    prompt: int,
    output: int,
    priority: int,
    ends_by_s: float,
) -> int:
    """Write the row of an arrived request; return its slot."""
    slot = take_slot(w.s)
    req = w.s.request[slot]
    req.id = request_id
    req.model = m
    req.prompt = prompt
    req.output = output
    req.arrival_s = now_s
    req.prefilled = 0
    req.step_tokens = 0
    req.chunks = 0
    req.start_kind = 0
    req.priority = priority
    model, costs = w.fleet.deployment[m], w.fleet.costs
    pair = model.arch * costs.kinds
    req.rank = rank(
        w.rules.system.order, now_s, prompt * costs.prompt_s[pair],
        max(0, output - 1) * costs.decode_s[pair], model.ttft_slo_s,
    )  # fmt: skip
    req.carried = 0
    req.again = 0
    req.held_by = -1
    req.made = 0
    req.unreserved = 0
    req.ends_by_s = ends_by_s
    if ends_by_s < math.inf:
        w.s.count[0].deadlines += 1
    req.ending = FAIL_NONE
    w.s.count[0].arrived += 1
    return int(slot)


@inlined
def why_unservable(w: Loop, m: int, tokens: int) -> int:
    """Return why no device serves so many tokens of `m`, or FAIL_NONE."""
    largest = largest_kv(w.fleet, w.s, m, tokens)
    if tokens <= largest:
        return FAIL_NONE
    if largest < 0:
        return FAIL_DEVICE
    return FAIL_KV if largest > 0 else FAIL_MEMORY
