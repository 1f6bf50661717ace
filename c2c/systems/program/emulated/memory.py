"""Sparse device memory at random addresses."""

from __future__ import annotations

import bisect
import random
from typing import Final

from c2c.systems.program.port import DeviceFault

__all__ = ["Memory"]

_PAGE: Final = 4096
_LOW: Final = 0x7F00_0000_0000
_GRAIN: Final = 2 << 20


class Memory:
    """Segments of device memory."""

    def __init__(self, nbytes: int, draw: random.Random) -> None:
        self._draw = draw
        self._noise = draw.randrange(1 << 62)
        self._next = _LOW + draw.randrange(1 << 18) * _GRAIN
        self._bases: list[int] = []
        self._sizes: dict[int, int] = {}
        self._reserved: list[tuple[int, int]] = []
        self._pages: dict[int, bytearray] = {}
        self.free_bytes = nbytes

    def allocate(self, nbytes: int) -> int:
        """Allocate a segment; return its address."""
        address = self._next
        self._next += (-(-nbytes // _GRAIN) + self._draw.randrange(4)) * _GRAIN
        self._add(address, nbytes)
        return address

    def reserve(self, nbytes: int, address: int) -> int:
        """Reserve addresses, at `address` if free; return the begin."""
        if not self._is_free(address, nbytes):
            address, self._next = self._next, self._next + -(-nbytes // _GRAIN) * _GRAIN
        self._reserved.append((address, address + nbytes))
        return address

    def allocate_at(self, address: int, nbytes: int) -> None:
        """Add a segment at an address of a reserved range."""
        if not any(low <= address and address + nbytes <= high for low, high in self._reserved):
            raise DeviceFault(f"{address:#x} is in no reserved range")
        k = bisect.bisect_right(self._bases, address)
        before = self._bases[k - 1] + self._sizes[self._bases[k - 1]] if k else 0
        if before > address or (k < len(self._bases) and self._bases[k] < address + nbytes):
            raise DeviceFault(f"{address:#x} has memory already")
        self._add(address, nbytes)

    def release(self, address: int) -> None:
        """Remove a segment; later reads of it fail."""
        if address not in self._sizes:
            raise DeviceFault(f"release of {address:#x}, which is no segment")
        nbytes = self._sizes.pop(address)
        self._bases.remove(address)
        self.free_bytes += nbytes
        for page in range(address // _PAGE, -(-(address + nbytes) // _PAGE)):
            self._pages.pop(page, None)

    def read(self, address: int, nbytes: int) -> bytes:
        """Return `nbytes` of one segment."""
        self._check(address, nbytes)
        page, offset = divmod(address, _PAGE)
        if offset + nbytes <= _PAGE:
            return bytes(self._page(page)[offset : offset + nbytes])
        parts = []
        while nbytes:
            page, offset = divmod(address, _PAGE)
            part = self._page(page)[offset : offset + nbytes]
            parts.append(part)
            address, nbytes = address + len(part), nbytes - len(part)
        return b"".join(parts)

    def write(self, address: int, data: bytes) -> None:
        """Store bytes in one segment."""
        self._check(address, len(data))
        done = 0
        while done < len(data):
            page, offset = divmod(address + done, _PAGE)
            part = data[done : done + _PAGE - offset]
            self._page(page)[offset : offset + len(part)] = part
            done += len(part)

    def _add(self, address: int, nbytes: int) -> None:
        if nbytes > self.free_bytes:
            raise DeviceFault(f"out of memory: {nbytes} bytes asked, {self.free_bytes} free")
        bisect.insort(self._bases, address)
        self._sizes[address] = nbytes
        self.free_bytes -= nbytes

    def _is_free(self, address: int, nbytes: int) -> bool:
        spans = [*self._reserved, *((base, base + self._sizes[base]) for base in self._bases)]
        return all(address + nbytes <= low or high <= address for low, high in spans)

    def _page(self, page: int) -> bytearray:
        result = self._pages.get(page)
        if result is None:
            noise = random.Random(self._noise ^ page)  # noqa: S311 (no secret)
            result = self._pages[page] = bytearray(noise.randbytes(_PAGE))
        return result

    def _check(self, address: int, nbytes: int) -> None:
        k = bisect.bisect_right(self._bases, address) - 1
        if k < 0 or address + nbytes > self._bases[k] + self._sizes[self._bases[k]]:
            raise DeviceFault(f"illegal address {address:#x} ({nbytes} bytes)")
