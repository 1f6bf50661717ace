"""A caching allocator: best fit in pools of segments."""

from __future__ import annotations

import bisect
import random
from collections.abc import Mapping
from typing import Final

from c2c.systems.program.port import Device, DeviceFault

__all__ = ["ROUND_BYTES", "SEGMENT_BYTES", "Allocator", "Arenas"]

ROUND_BYTES: Final = 512
SEGMENT_BYTES: Final = 2 << 20

# Begin of the first arena, far from the addresses of programs, libraries and the driver.
_FIRST_ARENA: Final = 0x2000_0000_0000


class Arenas:
    """Reserved address ranges of pools; equal ranges give equal addresses.

    Args:
      begins: of ranges in an earlier process; None: new ranges.
    """

    def __init__(self, device: Device, begins: Mapping[str, int] | None = None) -> None:
        self._device = device
        # in whole segments, the granularity of a device's addresses and memory
        self._nbytes = -(-int(device.describe()["memory_bytes"]) // SEGMENT_BYTES) * SEGMENT_BYTES
        self._is_chosen = begins is not None
        self.begins: dict[str, int] = {}
        self._ends: dict[str, int] = {}
        for pool, begin in (begins or {}).items():
            self._reserve(pool, begin)

    def segment(self, pool: str, nbytes: int) -> int:
        """Allocate a segment; return its address."""
        if pool not in self.begins:
            if self._is_chosen:
                return self._device.allocate(nbytes)
            self._reserve(pool, _FIRST_ARENA + len(self.begins) * self._nbytes)
        address = self._ends[pool]
        self._device.allocate_at(address, nbytes)
        self._ends[pool] += nbytes
        return address

    def _reserve(self, pool: str, begin: int) -> None:
        self.begins[pool] = self._ends[pool] = self._device.reserve(self._nbytes, begin)


class Allocator:
    """Caching allocator of blocks in segments of device memory.

    Args:
      whims: draws of blocks, like another history; None: best fit.
      guards: draws 512 to 2048 unused bytes behind each block; None: none.
      arenas: of segments; None: the device chooses.
    """

    def __init__(
        self,
        device: Device,
        *,
        whims: random.Random | None = None,
        guards: random.Random | None = None,
        arenas: Arenas | None = None,
    ) -> None:
        self._device, self.arenas = device, arenas
        self._whims, self._guards = whims, guards
        self._free: dict[str, list[tuple[int, int]]] = {}  # by pool: (bytes, address), sorted
        self._used: dict[int, tuple[str, int]] = {}  # by address: pool, bytes
        self._segments: dict[int, int] = {}
        self._begins: dict[int, tuple[str, int]] = {}  # free blocks by address
        self._ends: dict[int, int] = {}  # end of a free block -> its address

    def allocate(self, nbytes: int, pool: str = "") -> int:
        """Allocate a block of at least `nbytes`; return its address."""
        if nbytes <= 0:
            raise DeviceFault(f"cannot allocate {nbytes} bytes")
        amount = -(-nbytes // ROUND_BYTES) * ROUND_BYTES
        taken = amount
        if self._guards is not None:
            taken += ROUND_BYTES * self._guards.randrange(1, 5)
        size, address = self._block(taken, pool)
        if size > taken:
            self._add_free(pool, address + taken, size - taken)
        self._used[address] = (pool, taken)
        return address

    def free(self, address: int) -> None:
        """Return a block to its pool, merged with free neighbours."""
        if address not in self._used:
            raise DeviceFault(f"free of {address:#x}, which is not allocated")
        pool, size = self._used.pop(address)
        after = self._begins.get(address + size)
        if after is not None and address + size not in self._segments and after[0] == pool:
            self._remove_free(pool, address + size, after[1])
            size += after[1]
        before = self._ends.get(address)
        if before is not None and address not in self._segments and self._begins[before][0] == pool:
            length = self._begins[before][1]
            self._remove_free(pool, before, length)
            address, size = before, size + length
        self._add_free(pool, address, size)

    def release_all(self) -> None:
        """Release all segments."""
        for address in self._segments:
            self._device.release(address)
        for table in (self._free, self._used, self._segments, self._begins, self._ends):
            table.clear()

    def _block(self, nbytes: int, pool: str) -> tuple[int, int]:
        free = self._free.setdefault(pool, [])
        first = bisect.bisect_left(free, (nbytes, 0))
        if first < len(free) and (self._whims is None or self._whims.random() < 0.8):
            which = first if self._whims is None else self._whims.randrange(first, len(free))
            size, address = free[which]
            self._remove_free(pool, address, size)
            return size, address
        size = -(-nbytes // SEGMENT_BYTES) * SEGMENT_BYTES
        if self.arenas is None:
            address = self._device.allocate(size)
        else:
            address = self.arenas.segment(pool, size)
        self._segments[address] = size
        return size, address

    def _add_free(self, pool: str, address: int, size: int) -> None:
        bisect.insort(self._free.setdefault(pool, []), (size, address))
        self._begins[address] = (pool, size)
        self._ends[address + size] = address

    def _remove_free(self, pool: str, address: int, size: int) -> None:
        free = self._free[pool]
        del free[bisect.bisect_left(free, (size, address))]
        del self._begins[address]
        del self._ends[address + size]
