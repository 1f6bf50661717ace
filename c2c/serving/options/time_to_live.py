"""Unused prefix blocks are dropped after a time."""

from __future__ import annotations

import math
from typing import Annotated, Any, NamedTuple

import numpy as np

from c2c.errors import SettingError
from c2c.policies import jitable, on_request, on_steps, on_timer
from c2c.ranges import AboveZero, In
from c2c.serving.tables.block_table import CALLED_TOOL, SEEN, Blocks, drop
from c2c.serving.tables.state import Fleet, Loop

__all__ = ["Looked", "TimeToLive"]


class Looked(NamedTuple):
    """Time of the last look at all blocks."""

    at_s: Any  # f8[1]


class TimeToLive(NamedTuple):
    """Prefix blocks are dropped some time after their last use (ours).

    The last answer that used a block decides.

    Attributes:
      idle_s: stay of blocks after an answer that calls no tool.
      tool_s: stay after one that does.
      look_every_s: time between looks.
    """

    idle_s: Annotated[float, In("[0, inf]")] = 0.0
    tool_s: Annotated[float, In("[0, inf]")] = 300.0
    look_every_s: AboveZero = 1.0

    def memory(self, _fleet: Fleet) -> Looked:
        """Return the time before the first look."""
        return Looked(np.full(1, -math.inf))

    def check_beside(self, system: Any) -> None:
        """Raise SettingError without a prefix cache."""
        if not system.prefix_cache.is_on:
            raise SettingError(
                "system.option.policy", "time_to_live", "a system with system.prefix_cache",
                "Set system.prefix_cache.hbm=true or system.prefix_cache.host_bytes.",
            )  # fmt: skip


@jitable
def _stamp(policy: TimeToLive, b: Blocks, p: int, now_s: float) -> None:
    # Those of pool p that became unused since the last stamps, which are its newest.
    k = int(b.pool[p].newest)
    while k >= 0 and b.entry[k].use != SEEN:
        e = b.entry[k]
        e.until_s = now_s + (policy.tool_s if e.use == CALLED_TOOL else policy.idle_s)
        e.use = SEEN
        k = int(e.older)


@jitable
def _look(policy: TimeToLive, own: Looked, w: Loop, now_s: float) -> float:
    # Drop what is due if it is time for a look; return when the next one is.
    b = w.s.blocks
    if now_s < own.at_s[0] + policy.look_every_s:
        return float(own.at_s[0] + policy.look_every_s)
    own.at_s[0] = now_s
    for p in range(len(b.pool)):
        _stamp(policy, b, p, now_s)
        k = int(b.pool[p].oldest)
        while k >= 0:  # a block is older than the one before it in a prompt
            newer = int(b.entry[k].newer)
            if b.entry[k].until_s <= now_s and b.entry[k].children == 0:
                drop(b, k)
            k = newer
    return now_s + policy.look_every_s


@on_request.by(TimeToLive)
def _on_request(policy: TimeToLive, own: Looked, w: Loop, slot: int, now_s: float) -> float:
    return float(_look(policy, own, w, now_s))


@on_steps.by(TimeToLive)
def _on_steps(policy: TimeToLive, own: Looked, w: Loop, device: int, now_s: float) -> float:
    _stamp(policy, w.s.blocks, device, now_s)
    _stamp(policy, w.s.blocks, len(w.s.device) + w.s.device[device].chip, now_s)
    return float(_look(policy, own, w, now_s))


@on_timer.by(TimeToLive)
def _on_timer(policy: TimeToLive, own: Looked, w: Loop, open_requests: int, now_s: float) -> float:
    return float(_look(policy, own, w, now_s))
