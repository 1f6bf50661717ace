"""Alignment of arrays in cache lines."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

__all__ = ["in_lines", "spread_rows"]

_LINE: Final = 64  # bytes


def spread_rows(itemsize: int, count: int) -> int:
    """Return a row length of at least `count` items that spreads rows over the cache's sets.

    >>> spread_rows(8, 128), spread_rows(24, 128), spread_rows(8, 8)
    (129, 129, 8)
    """
    while -(-count * itemsize // _LINE) % 2 == 0:
        count += 1
    return count


def in_lines(values: Any) -> Any:
    """Return a one-dimensional copy, aligned to a cache line."""
    room = np.zeros(values.nbytes + _LINE, np.uint8)
    first = -room.ctypes.data % _LINE
    result = room[first : first + values.nbytes].view(values.dtype)
    result[:] = values
    return result
