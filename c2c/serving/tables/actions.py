"""Actions of the serving loop for its backend."""

from __future__ import annotations

from typing import Final

from c2c.policies import inlined, jitable
from c2c.serving.tables.state import Serving

__all__ = [
    "ACT_ASIDE",
    "ACT_FORGET",
    "ACT_HAND",
    "ACT_INTERRUPT",
    "ACT_LOAD",
    "ACT_RELAYOUT",
    "ACT_RUN",
    "ACT_TIMER",
    "ACT_UNLOAD",
    "ask",
    "emit",
    "is_new_run",
]

# The second number is the device, whose plan says the rest.
ACT_LOAD: Final = 0
ACT_RUN: Final = 1
ACT_INTERRUPT: Final = 2  # end the decode run at the next step boundary
ACT_RELAYOUT: Final = 3  # send what the lane's next variant needs (`Serving.sent_bytes`)
ACT_UNLOAD: Final = 4  # the second number is the instance
ACT_FORGET: Final = 5  # the second number is the request's id; through the port only
ACT_ASIDE: Final = 6  # likewise: free its KV cache, it will come again
ACT_HAND: Final = 7  # the second number is the slot of a request: hand its KV cache over
ACT_TIMER: Final = 8  # the second number is a timer: it is to go off at `timer_s`; port only


@inlined
def emit(s: Serving, code: int, where: int) -> None:
    """Append an action for the backend."""
    n = s.count[0].actions
    s.actions[n, 0] = code
    s.actions[n, 1] = where
    s.count[0].actions = n + 1


@inlined
def ask(s: Serving, d: int) -> None:
    """Mark device `d` for work, see `start_asked`."""
    if s.device[d].is_asked == 0:
        s.device[d].is_asked = 1
        s.asked[s.count[0].asked % len(s.asked)] = d  # a ring: each device at most once
        s.count[0].asked += 1


@jitable
def is_new_run(s: Serving, d: int) -> bool:
    """Return whether this event starts a run of device `d`."""
    for k in range(s.count[0].actions):
        if s.actions[k, 0] == ACT_RUN and s.actions[k, 1] == d:
            return True
    return False
