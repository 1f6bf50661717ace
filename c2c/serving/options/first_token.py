"""Requests with a late first token are given up."""

from __future__ import annotations

import math
from typing import NamedTuple

from c2c.policies import Nothing, jitable, on_request, on_timer
from c2c.ranges import AboveZero
from c2c.serving.early_end import end_request
from c2c.serving.tables.batch import place_among_decodes
from c2c.serving.tables.state import FAIL_DEADLINE, FAIL_NONE, NOBODY, Loop

__all__ = ["FirstToken"]


class FirstToken(NamedTuple):
    """A request fails (`deadline`) without a token after `times` its TTFT target.

    Attributes:
      times: multiple of the TTFT target.
    """

    times: AboveZero = 1.0


@jitable
def _due_s(policy: FirstToken, w: Loop, slot: int) -> float:
    # When the request in a slot is given up; inf: it has a token, or ends.
    req = w.s.request[slot]
    has_token = req.carried > 0 or req.made > 0
    if req.id == NOBODY or req.ending != FAIL_NONE or has_token:
        return math.inf
    if req.instance >= 0 and place_among_decodes(w.s, req.instance, slot) >= 0:
        return math.inf
    return float(req.arrival_s + policy.times * w.fleet.deployment[req.model].ttft_slo_s)


@on_request.by(FirstToken)
def _on_request(policy: FirstToken, own: Nothing, w: Loop, slot: int, now_s: float) -> float:
    return _due_s(policy, w, slot)


@on_timer.by(FirstToken)
def _on_timer(policy: FirstToken, own: Nothing, w: Loop, open_requests: int, now_s: float) -> float:
    next_s = math.inf
    for slot in range(len(w.s.request)):
        due_s = _due_s(policy, w, slot)
        if due_s <= now_s:
            end_request(w, slot, FAIL_DEADLINE, now_s)
        else:
            next_s = min(next_s, due_s)
    return next_s
