"""Work of the scheduler's process between reports: postponed work, and the look for the next one.

To be woken takes a process as long as to decide, so where a worker's report is due the process
looks for it in place of sleeping: for a short time before and after, and only as long as nobody
else wants the core.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import deque
from collections.abc import Callable, Hashable
from typing import Any

__all__ = ["Between"]

_LEAST_S = 0.001  # looked for a report before and after it is due: timers are no finer
_MOST_S = 0.002
_SHARE = 0.125  # of the step, between these two
_AWAY_S = 0.0002  # a core that does not come back by then is somebody else's
_REST = 50  # times that long no looking, so that at most a fiftieth of the time is lost with it
_AT_ONCE = 8  # of so many pieces of work one more a turn, or answers would wait ever longer


class Between:
    """Work that no plan waits for, a piece at a time, and looks for reports that are due."""

    def __init__(
        self,
        *,
        looks: bool,
        clock: Callable[[], float] = time.monotonic,
        give_way: Callable[[], None] = os.sched_yield,
    ) -> None:
        """Begin with nothing.

        Args:
          looks: whether to look for reports; else the process sleeps until they come.
          clock: in seconds.
          give_way: lets others have the core, if any want it.
        """
        self._looks, self._clock, self._give_way = looks, clock, give_way
        self._work: deque[tuple[Callable[..., object], tuple[Any, ...]]] = deque()
        self._took: dict[Hashable, float] = {}  # seconds of the last step of a kind
        self._begun: dict[int, tuple[Hashable, float]] = {}  # device: kind of its step, and when
        self._due: dict[int, tuple[float, float]] = {}  # device: looked for from when to when
        self._is_turning = False
        self._timer: asyncio.TimerHandle | None = None
        self._rests_until_s = 0.0

    def later(self, work: Callable[..., object], *args: Any) -> None:
        """Have something done once the event that is taken now is over with, in this order."""
        self._work.append((work, args))
        if not self._is_turning:
            self._begin()

    def catch_up(self) -> None:
        """Do all that waits, now."""
        while self._work:
            work, args = self._work.popleft()
            work(*args)

    def expect(self, device: int, kind: Hashable) -> None:
        """A device begins a step; its report is looked for if there was one of its kind."""
        if not self._looks:
            return
        now_s = self._clock()
        self._begun[device] = kind, now_s
        seconds = self._took.get(kind)
        if seconds is None:
            return
        margin_s = min(_MOST_S, max(_LEAST_S, _SHARE * seconds))
        self._due[device] = now_s + seconds - margin_s, now_s + seconds + margin_s
        if not self._is_turning:
            self._begin()

    def heard(self, device: int) -> None:
        """A device has reported, or is gone: it is looked for no more."""
        self._due.pop(device, None)
        begun = self._begun.pop(device, None)
        if begun is not None:
            kind, at_s = begun
            self._took[kind] = self._clock() - at_s

    def _begin(self) -> None:
        self._is_turning = True
        asyncio.get_running_loop().call_soon(self._turn)

    def _turn(self) -> None:
        """Do a piece of work, or look; what has come is taken between two turns."""
        if not self._work and not self._is_due():
            self._is_turning = False
            return
        asyncio.get_running_loop().call_soon(self._turn)
        if self._looks:
            self._let_others()  # a worker that has just got its plan, first of all
        if self._work:
            for _ in range(1 + len(self._work) // _AT_ONCE):
                work, args = self._work.popleft()
                work(*args)

    def _let_others(self) -> None:
        """Let others have the core, unless they kept it for long a short time ago."""
        now_s = self._clock()
        if now_s < self._rests_until_s:
            return
        self._give_way()
        away_s = self._clock() - now_s
        if away_s > _AWAY_S:
            self._rests_until_s = now_s + _REST * away_s

    def _is_due(self) -> bool:
        """Say whether to look now; if that is for later, see to it that it begins."""
        if not self._due:
            return False
        now_s = self._clock()
        begin_s = min(
            (begin_s for begin_s, end_s in self._due.values() if end_s > now_s), default=None
        )
        if begin_s is None:
            self._due.clear()  # they take longer than before
            return False
        rest_s, wait_s = self._rests_until_s - now_s, begin_s - now_s
        if rest_s <= 0 and wait_s < _LEAST_S:
            return True
        self._look_in(max(rest_s, wait_s, _LEAST_S))
        return False

    def _look_in(self, seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(seconds, self._look)

    def _look(self) -> None:
        self._timer = None
        if not self._is_turning:
            self._begin()
