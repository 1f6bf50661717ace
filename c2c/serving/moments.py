"""Moments at which a system's option acts (`c2c.policies.option`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from c2c.policies import apart, jitable, on_request, on_steps, on_timer
from c2c.serving.actions import ACT_TIMER, emit
from c2c.serving.early_end import give_up
from c2c.serving.state import NOBODY, Loop, Rules
from c2c.serving.timers import set_timer

__all__ = ["act_on_request", "act_on_steps", "act_on_timer", "on_due"]


def _acts(values: Mapping[type, Any]) -> bool:
    return bool(values[Rules].traits.option.acts)


@jitable
def _ask_timer(w: Loop, due_s: float) -> None:
    count = w.s.count[0]
    is_idle = count.arrived == count.finished + count.failed
    if due_s < w.s.timer_s[0] and not is_idle:
        set_timer(w.s, 0, due_s)
        emit(w.s, ACT_TIMER, 0)


@apart("act_on_request", needed=_acts)
def act_on_request(w: Loop, slot: int, now_s: float) -> None:
    """Let the option act on the request in a slot, if it has not failed at once."""
    if w.s.request[slot].id != NOBODY:
        _ask_timer(w, on_request(w.rules.system.option, w.rules.own.option, w, slot, now_s))


@apart("act_on_steps", needed=_acts)
def act_on_steps(w: Loop, d: int, now_s: float) -> None:
    """Let the option act after steps of device `d`."""
    _ask_timer(w, on_steps(w.rules.system.option, w.rules.own.option, w, d, now_s))


@apart("act_on_timer", needed=_acts)
def act_on_timer(w: Loop, now_s: float) -> None:
    """Let the option act at a time that it asked for."""
    count = w.s.count[0]
    there = count.arrived - count.finished - count.failed
    _ask_timer(w, on_timer(w.rules.system.option, w.rules.own.option, w, there, now_s))


@jitable
def on_due(w: Loop, now_s: float) -> None:
    """Handle timer 0: deadlines, and the option's."""
    give_up(w, now_s)
    if w.rules.traits.option.acts:
        act_on_timer(w, now_s)
