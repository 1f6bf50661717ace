"""Virtual clock for workers: real pieces and sends at a plan's simulated times, without waiting.

A piece is computed at its simulated start. Only at its simulated end do others see its results, and
its device chooses the next piece. Time passes when no device has a ready piece.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

__all__ = ["VirtualClock"]


@dataclass(slots=True)
class VirtualClock:
    """Simulated time and the events still to come.

    Attributes:
      piece_s: seconds of each piece on its device, by number.
      send_s: seconds of (bytes, source, target) on a link that carries one transfer at a time.
      now_s: current time.
      busy_s: busy seconds of each device so far.
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
        """Occupy a device with a piece from now on; call `ended` at its end."""
        seconds = self.piece_s[piece]
        self.busy_s[gpu] = self.busy_s.get(gpu, 0.0) + seconds
        self._until_s[gpu] = self.now_s + seconds
        self._at(self._until_s[gpu], ended)

    def sent(self, nbytes: float, source: int, target: int, arrived: Callable[[], None]) -> None:
        """Send a busy device's result once its piece has ended; call `arrived` on arrival."""
        link = source, target
        begins_s = max(self._until_s[source], self._link_free_s.get(link, 0.0))
        self._link_free_s[link] = begins_s + self.send_s(nbytes, source, target)
        self._at(self._link_free_s[link], arrived)

    def advance(self) -> bool:
        """Advance to the next events and call them; return False if there is none."""
        if not self._events:
            return False
        self.now_s = self._events[0][0]
        while self._events and self._events[0][0] <= self.now_s:
            heapq.heappop(self._events)[2]()
        return True

    def _at(self, at_s: float, happens: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._events, (at_s, self._count, happens))
