"""A clock for workers that pretend to take a plan's times: real pieces, real sends, no waiting.

A piece is run when its device turns to it and is over at its pretended end: only then others see
what it gave, and its device turns to the next one. Time passes when all devices have nothing to do.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

__all__ = ["VirtualClock"]


@dataclass(slots=True)
class VirtualClock:
    """The time, and what is still to come.

    Attributes:
      piece_s: of each piece on its device, by number.
      send_s: of so many bytes from one device to another, on a link that does one at a time.
      now_s: the time.
      busy_s: of each device so far.
    """

    piece_s: Sequence[float]
    send_s: Callable[[float, int, int], float]
    now_s: float = 0.0
    busy_s: dict[int, float] = field(default_factory=dict)
    _until_s: dict[int, float] = field(default_factory=dict)
    _link_free_s: dict[tuple[int, int], float] = field(default_factory=dict)
    _events: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)
    _count: int = 0

    def is_busy(self, gpu: int) -> bool:
        """Return whether a device computes now."""
        return self._until_s.get(gpu, 0.0) > self.now_s

    def ran(self, gpu: int, piece: int, ended: Callable[[], None]) -> None:
        """Let a device be busy with a piece from now on, and call `ended` at its end."""
        seconds = self.piece_s[piece]
        self.busy_s[gpu] = self.busy_s.get(gpu, 0.0) + seconds
        self._until_s[gpu] = self.now_s + seconds
        self._at(self._until_s[gpu], ended)

    def sent(self, nbytes: float, source: int, target: int, arrived: Callable[[], None]) -> None:
        """Send what a busy device is computing when it has ended, and call `arrived` then."""
        link = source, target
        begins_s = max(self._until_s[source], self._link_free_s.get(link, 0.0))
        self._link_free_s[link] = begins_s + self.send_s(nbytes, source, target)
        self._at(self._link_free_s[link], arrived)

    def advance(self) -> bool:
        """Go on to what comes next and let it happen; False: nothing does."""
        if not self._events:
            return False
        self.now_s = self._events[0][0]
        while self._events and self._events[0][0] <= self.now_s:
            heapq.heappop(self._events)[2]()
        return True

    def _at(self, at_s: float, happens: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._events, (at_s, self._count, happens))
