"""Scheduler between reports: postponed work, polling for due reports."""

from __future__ import annotations

import asyncio
import os
import time
from collections import deque
from collections.abc import Callable, Hashable
from typing import Any

__all__ = ["Between"]

_LEAST_S = 0.001  # least polling before and after a report is due; timers are no finer
_MOST_S = 0.002  # most polling before and after
_SHARE = 0.125  # share of the step's duration, within these bounds
_AWAY_S = 0.0002  # a longer yield means that other processes use the core
_REST = 50  # pause after such a yield, in its durations: polling loses at most a fiftieth
_AT_ONCE = 8  # one more piece an iteration for each so many queued, to bound the queue


class Between:
    """Postponed work, piece by piece, and polling for due reports."""

    def __init__(
        self,
        *,
        looks: bool,
        clock: Callable[[], float] = time.monotonic,
        give_way: Callable[[], None] = os.sched_yield,
    ) -> None:
        """Create an empty queue."""
        self._looks, self._clock, self._give_way = looks, clock, give_way
        self._work: deque[tuple[Callable[..., object], tuple[Any, ...]]] = deque()
        self._took: dict[Hashable, float] = {}  # seconds of the last step of a kind
        self._begun: dict[int, tuple[Hashable, float]] = {}  # device: kind and start of its step
        self._due: dict[int, tuple[float, float]] = {}  # device: start and end of polling
        self._is_turning = False
        self._timer: asyncio.TimerHandle | None = None
        self._rests_until_s = 0.0

    def later(self, work: Callable[..., object], *args: Any) -> None:
        """Queue work for after the current event."""
        self._work.append((work, args))
        if not self._is_turning:
            self._begin()

    def catch_up(self) -> None:
        """Do all queued work now."""
        while self._work:
            work, args = self._work.popleft()
            work(*args)

    def expect(self, device: int, kind: Hashable) -> None:
        """Expect a device's step, polled for if its kind was timed."""
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
        """Stop polling for a device, and time its step."""
        self._due.pop(device, None)
        begun = self._begun.pop(device, None)
        if begun is not None:
            kind, at_s = begun
            self._took[kind] = self._clock() - at_s

    def _begin(self) -> None:
        self._is_turning = True
        asyncio.get_running_loop().call_soon(self._turn)

    def _turn(self) -> None:
        if not self._work and not self._is_due():
            self._is_turning = False
            return
        asyncio.get_running_loop().call_soon(self._turn)
        if self._looks:
            self._let_others()  # above all a worker with a new plan
        if self._work:
            for _ in range(1 + len(self._work) // _AT_ONCE):
                work, args = self._work.popleft()
                work(*args)

    def _let_others(self) -> None:
        now_s = self._clock()
        if now_s < self._rests_until_s:
            return
        self._give_way()
        away_s = self._clock() - now_s
        if away_s > _AWAY_S:
            self._rests_until_s = now_s + _REST * away_s

    def _is_due(self) -> bool:
        if not self._due:
            return False
        now_s = self._clock()
        begin_s = min(
            (begin_s for begin_s, end_s in self._due.values() if end_s > now_s), default=None
        )
        if begin_s is None:
            self._due.clear()  # the reports are later than expected
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
