"""Places of arrays in lines of the processor's cache."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

__all__ = ["in_lines", "spread_rows"]

_LINE: Final = 64  # bytes


def spread_rows(itemsize: int, count: int) -> int:
    """Return how many items, at least `count`, rows have that do not share few sets of the cache.

    Of rows 3 kB apart 512 kB of second-level cache with eight ways hold the first lines of 512, and
    32 kB of first-level cache of 32.

    >>> spread_rows(8, 128), spread_rows(24, 128), spread_rows(8, 8)
    (129, 129, 8)
    """
    while -(-count * itemsize // _LINE) % 2 == 0:
        count += 1
    return count


def in_lines(values: Any) -> Any:
    """Return a copy of an array of one dimension that begins with a line."""
    room = np.zeros(values.nbytes + _LINE, np.uint8)
    first = -room.ctypes.data % _LINE
    found = room[first : first + values.nbytes].view(values.dtype)
    found[:] = values
    return found
