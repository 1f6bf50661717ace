"""Tables whose rows begin with a line of the processor's cache.

A row of 280 bytes anywhere lies in five or six lines, in a table made here in five; an event reads
rows of ten tables. Rows of a power of two would share few sets of the cache, see `odd_lines`.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

__all__ = ["in_lines", "lined", "odd_lines"]

_LINE: Final = 64  # bytes


def lined(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype of records whose size is a whole number of lines."""
    assert dtype.fields is not None
    names = dtype.names or ()
    return np.dtype(
        {
            "names": list(names),
            "formats": [dtype.fields[name][0] for name in names],
            "offsets": [dtype.fields[name][1] for name in names],
            "itemsize": -(-dtype.itemsize // _LINE) * _LINE,
        },
        align=True,
    )


def odd_lines(itemsize: int, count: int) -> int:
    """Return the least number of items, at least `count`, that are an odd number of lines or more.

    Rows that are a multiple of many lines apart meet in few sets of the cache: of 700 rows 3 kB
    apart a second-level cache of 512 kB holds the first lines of 512 only.
    """
    while (count * itemsize + _LINE - 1) // _LINE % 2 == 0:
        count += 1
    return count


def in_lines(rows: int, dtype: np.dtype[Any], value: Any = None) -> Any:
    """Return an array of zeros, or of one value, that begins with a line."""
    size = rows * dtype.itemsize
    bytes_ = np.zeros(size + _LINE, np.uint8)
    first = -bytes_.ctypes.data % _LINE
    found = bytes_[first : first + size].view(dtype)
    if value is not None:
        found[:] = value
    return found
