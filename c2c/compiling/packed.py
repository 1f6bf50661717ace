"""Tuples of arrays that compiled code takes by their address.

An array is seven numbers to a compiled call, and the state of the event loop has thirty: passed by
value they would be most of the code, and of the time to make it. Packed they are one number, and
each function reads what it uses.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import numpy as np

__all__ = ["Packed", "as_array", "kind_of", "pack", "words"]


class Packed(NamedTuple):
    """A tuple as compiled code takes it; its fields have the names and types of the original's.

    Attributes:
      at: address of its words.
      value: the original, and with it the arrays that the words point to.
      kept: what lies at the address.
    """

    at: int
    value: Any
    kept: np.ndarray


def pack(value: Any) -> Packed:
    """Return a named tuple of numbers, arrays and further tuples for compiled code.

    Numbers are as they are now; what is written into the arrays is seen on both sides.
    """
    found = as_array(words(value))
    return Packed(found.ctypes.data, value, found)


def as_array(found: list[int]) -> np.ndarray:
    """Return words as memory that addresses can point to."""
    return np.array(found or [0], np.uint64)


def words(value: Any) -> list[int]:
    """Return the 8-byte words that `read` makes such a value of.

    Args:
      value: a number, an array, or a tuple of them; arrays must outlive the use of the words.

    Raises:
      TypeError: it is something else.
    """
    if isinstance(value, tuple):
        return [word for part in value for word in words(part)]
    if isinstance(value, np.ndarray):
        return [value.ctypes.data, *value.shape, *(stride % 2**64 for stride in value.strides)]
    if isinstance(value, bool | int | np.bool_ | np.integer):
        return [int(value) % 2**64]
    if isinstance(value, float | np.floating):
        return [int(np.float64(value).view(np.uint64))]
    raise TypeError(f"{type(value).__name__} is neither a number nor an array")


def kind_of(value: Any) -> str:
    """Return what machine code depends on of a value: equal texts are equal types to Numba.

    >>> kind_of((1, 2.0, True))
    'builtins.tuple(int,float,bool)'
    """
    if isinstance(value, tuple):
        kind = type(value)
        return f"{kind.__module__}.{kind.__qualname__}({','.join(map(kind_of, value))})"
    if isinstance(value, np.ndarray):
        flags = value.flags
        layout = "C" if flags.c_contiguous else "F" if flags.f_contiguous else "A"
        ways = f"{layout}{flags.aligned:d}{flags.writeable:d}"
        return f"{type(value).__name__}[{_dtype_text(value.dtype)},{value.ndim},{ways}]"
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        return "wide int"
    return value.dtype.str if isinstance(value, np.generic) else type(value).__name__


@functools.cache
def _dtype_text(dtype: np.dtype[Any]) -> str:
    return f"{dtype.descr}{dtype.itemsize}{dtype.alignment}"
