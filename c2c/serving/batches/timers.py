"""Timers of the loop."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from c2c.policies import answer, apart, jitable
from c2c.serving.memory.kv_homes import vacancy
from c2c.serving.memory.variants import vary_now
from c2c.serving.tables.state import Fleet, Loop, Rules, Serving

__all__ = ["answer_timer", "has_timers", "set_timer", "start_timers"]


def has_timers(rules: Rules) -> bool:
    """Return whether a policy of these rules has timers."""
    return bool(rules.traits.vary.timer_s < math.inf)


def start_timers(rules: Rules, s: Serving) -> None:
    """Set the chips' timers for the first time."""
    for number in range(1, len(s.timer_s)):
        set_timer(s, number, rules.traits.vary.timer_s)


@jitable
def set_timer(s: Serving, number: int, at_s: float) -> None:
    """Set a timer for `at_s`; of equal times the lowest is first."""
    s.timer_s[number] = at_s
    first = 0
    for k in range(1, len(s.timer_s)):
        if s.timer_s[k] < s.timer_s[first]:
            first = k
    s.count[0].first_timer = first


@jitable
def _watch(fleet: Fleet, s: Serving, c: int) -> int:
    n = 0
    for i in range(s.chip[c].first * fleet.residents, s.chip[c].last * fleet.residents):
        inst, row = s.instance[i], s.watched[n]
        row.instance = i
        row.model = inst.model
        row.waiting = inst.n_wait
        row.prompts = inst.n_prefill
        row.decodes = inst.n_decode
        row.backlog = inst.backlog
        row.kv_used = inst.kv_used
        row.kv_capacity = inst.kv_capacity
        row.steps = inst.decode_clock
        row.vacancy = vacancy(fleet, s, i)
        n += 1
    return n


def _has_timers(values: Mapping[type, Any]) -> bool:
    return has_timers(values[Rules])


@apart("answer", needed=_has_timers)
def answer_timer(w: Loop, number: int, now_s: float) -> None:
    """Call the policy at a chip's timer; changes wait for step boundaries."""
    c = number - 1
    count = _watch(w.fleet, w.s, c)
    due_s = answer(w.rules.system.vary, w.rules.own.vary, w.s.watched, count, c, now_s)
    set_timer(w.s, number, due_s)
    for d in range(w.s.chip[c].first, w.s.chip[c].last):
        vary_now(w, w.s.device[d].first, now_s)
