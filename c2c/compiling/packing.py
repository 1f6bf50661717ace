"""Tuples of arrays, passed by address."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import numpy as np

__all__ = ["Packed", "as_array", "kind_of", "pack", "words"]


# An array is seven numbers to a compiled call: thirty of them passed by value would be most of the
# code and of its compile time.
class Packed(NamedTuple):
    """A tuple with the original's fields for compiled code.

    Attributes:
      at: of its words.
      value: original, which owns the arrays.
      kept: object at the address.
    """

    at: int
    value: Any
    kept: np.ndarray


def pack(value: Any) -> Any:
    """Pack a named tuple of numbers, arrays and further tuples; arrays are shared.

    A tuple of named tuples, such as the loop's `w`, becomes one of packed ones, for speed.
    """
    if all(hasattr(field, "_fields") for field in value):
        return type(value)(*map(pack, value))
    array = as_array(words(value))
    return Packed(array.ctypes.data, value, array)


def as_array(values: list[int]) -> np.ndarray:
    """Return words as memory with a fixed address."""
    return np.array(values or [0], np.uint64)


def words(value: Any) -> list[int]:
    """Return the 8-byte words that `read` takes; the value's arrays must outlive them.

    Raises:
      TypeError: no number, array, or tuple of them.
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
    """Return the part of a value's type that machine code depends on.

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
