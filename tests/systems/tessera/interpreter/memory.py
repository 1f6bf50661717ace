"""Global memory of the interpreter: allocations with gaps, accessed by many lanes at once."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from c2c.systems.program import DeviceFault

__all__ = ["Bytes", "Memory"]

Bytes = np.ndarray[Any, np.dtype[np.uint8]]

_BASE: Final = 0x7F_0000_0000  # address of the first allocation; far from any index
_GAP: Final = 256
_WORDS: dict[int, Any] = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


class Memory:
    """Allocations with gaps between them: an access beyond one of them is a fault.

    Every access raises `DeviceFault` unless its bytes are in one allocation and aligned.
    """

    def __init__(self) -> None:
        self._arena = np.zeros(0, np.uint8)
        self._begins = np.zeros(0, np.int64)
        self._ends = np.zeros(0, np.int64)

    def allocate(self, nbytes: int, content: bytes = b"") -> int:
        """Return the address of a new allocation, which is 0 beyond `content`."""
        begin = len(self._arena)
        padded = -(-max(nbytes, 1) // _GAP) * _GAP + _GAP
        more = np.zeros(padded, np.uint8)
        more[: len(content)] = np.frombuffer(content, np.uint8)
        self._arena = np.concatenate([self._arena, more])
        self._begins = np.append(self._begins, begin)
        self._ends = np.append(self._ends, begin + nbytes)
        return _BASE + begin

    def read(self, address: int, nbytes: int) -> bytes:
        """Return the bytes at an address."""
        at = self._places(np.array([address]), nbytes)[0]
        return self._arena[at : at + nbytes].tobytes()

    def write(self, address: int, data: bytes) -> None:
        """Write bytes at an address."""
        at = self._places(np.array([address]), len(data))[0]
        self._arena[at : at + len(data)] = np.frombuffer(data, np.uint8)

    def gather(self, addresses: Any, nbytes: int) -> Any:
        """Return words of 1, 2, 4 or 8 bytes, unsigned, one for each address."""
        at = self._places(addresses, nbytes)
        if nbytes == 1:
            return self._arena[at]
        return self._arena.view(_WORDS[nbytes])[at // nbytes]

    def scatter(self, addresses: Any, words: Any) -> None:
        """Write words, one for each address; the last one wins if addresses repeat."""
        at = self._places(addresses, words.dtype.itemsize)
        self._arena.view(words.dtype)[at // words.dtype.itemsize] = words

    def cells(self, addresses: Any, dtype: Any) -> tuple[Any, Any]:
        """Return all memory as words of a type, and the index of each address among them."""
        kind = np.dtype(dtype)
        return self._arena.view(kind), self._places(addresses, kind.itemsize) // kind.itemsize

    def _places(self, addresses: Any, nbytes: int) -> Any:
        at = np.asarray(addresses).astype(np.int64) - _BASE
        which = np.searchsorted(self._begins, at, "right") - 1
        wrong = (which < 0) | (at < 0)
        if len(self._ends):
            wrong |= at + nbytes > self._ends[which]
        aligned = nbytes if nbytes in _WORDS else 1
        wrong |= at % aligned != 0
        if np.any(wrong):
            address = int(np.asarray(addresses)[np.nonzero(wrong)[0][0]])
            raise DeviceFault(f"{nbytes} bytes at {address:#x}: outside allocations or not aligned")
        return at
