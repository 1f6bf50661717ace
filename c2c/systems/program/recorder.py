"""Trace of a start."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from c2c.systems.program.allocator import Allocator
from c2c.systems.program.port import Device

__all__ = ["AllocationId", "Event", "Recorder"]


class AllocationId(NamedTuple):
    """Name of an allocation: thread, pool, and number there."""

    thread: str
    pool: str
    number: int


class Event(NamedTuple):
    """An allocation or a free.

    Attributes:
      nbytes: 0: a free.
      graph: under capture; -1: none.
      node: the graph's nodes then.
    """

    thread: str
    allocation: AllocationId
    nbytes: int
    address: int
    graph: int = -1
    node: int = 0

    @property
    def is_free(self) -> bool:
        """True for a free."""
        return self.nbytes == 0


class Recorder:
    """An allocator that records allocations and frees."""

    def __init__(self, device: Device, allocator: Allocator) -> None:
        self.device = device
        self.allocator = allocator
        self.events: list[Event] = []
        self.addresses: dict[AllocationId, int] = {}  # latest address of each allocation
        self.starts: list[int] = []  # number of events before each graph's capture
        self._live: dict[int, AllocationId] = {}
        self._sizes: dict[int, int] = {}
        self._numbers: Counter[tuple[str, str]] = Counter()
        self._is_capturing = False

    def allocate(self, nbytes: int, *, thread: str = "main", pool: str = "") -> int:
        """Allocate memory; return its address."""
        arenas = self.allocator.arenas
        # an arena for each thread, so that addresses do not depend on the order of threads
        address = self.allocator.allocate(nbytes, pool if arenas is None else f"{thread}/{pool}")
        name = AllocationId(thread, pool, self._numbers[thread, pool])
        self._numbers[thread, pool] += 1
        self._live[address], self._sizes[address] = name, nbytes
        self.addresses[name] = address
        self._note(thread, name, nbytes, address)
        return address

    def free(self, address: int, *, thread: str = "main") -> None:
        """Free the memory at an address."""
        self.allocator.free(address)
        del self._sizes[address]
        self._note(thread, self._live.pop(address), 0, address)

    def roll_back(self, count: int) -> None:
        """Free all allocations after `count` events, and forget these."""
        gone, self.events = self.events[count:], self.events[:count]
        for event in reversed(gone):
            if event.is_free:
                continue
            if self.is_live(event.allocation):
                self.allocator.free(event.address)
                del self._sizes[event.address], self._live[event.address]
            del self.addresses[event.allocation]
            self._numbers[event.allocation.thread, event.allocation.pool] -= 1

    @property
    def held_bytes(self) -> int:
        """Bytes of all live allocations, as asked for."""
        return sum(self._sizes.values())

    @property
    def live(self) -> dict[int, int]:
        """Requested bytes of live allocations, by address."""
        return dict(self._sizes)

    def name_of(self, address: int) -> AllocationId:
        """Return the live allocation that begins at an address."""
        return self._live[address]

    def is_live(self, name: AllocationId) -> bool:
        """Return whether an allocation is live."""
        address = self.addresses.get(name)
        return address is not None and self._live.get(address) == name

    def begin_capture(self) -> None:
        """Begin a graph's capture."""
        self.device.begin_capture()
        self.starts.append(len(self.events))
        self._is_capturing = True

    def end_capture(self) -> int:
        """End the capture; return the device's graph."""
        graph = self.device.end_capture()
        self._is_capturing = False
        return graph

    def _note(self, thread: str, name: AllocationId, nbytes: int, address: int) -> None:
        if self._is_capturing:
            position = (len(self.starts) - 1, self.device.captured_nodes())
            self.events.append(Event(thread, name, nbytes, address, *position))
        else:
            self.events.append(Event(thread, name, nbytes, address))
