"""Exchange between Arrow and NumPy without pandas."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

__all__ = ["filled", "nulls", "scalar", "to_arrow", "values"]


def values(array: pa.Array) -> NDArray[Any]:
    """Return the values of an array without nulls."""
    import pyarrow.compute as pc

    if pa.types.is_boolean(array.type):
        return np.from_dlpack(pc.cast(array, pa.uint8())).view(np.bool_)
    return np.from_dlpack(array)


def nulls(array: pa.Array) -> NDArray[np.bool_]:
    """Return a mask of the nulls."""
    return values(array.is_null())


def filled(array: pa.Array, value: float) -> pa.Array:
    """Return an array with a value for nulls."""
    import pyarrow.compute as pc

    return pc.fill_null(array, scalar(value, array.type))


def scalar(value: str | float, kind: pa.DataType) -> pa.Scalar:
    """Return one Arrow value."""
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        text = str(value).encode()
        ends = pa.py_buffer(np.array([0, len(text)], np.int32))
        return pa.Array.from_buffers(pa.string(), 1, [None, ends, pa.py_buffer(text)])[0].cast(kind)
    if pa.types.is_boolean(kind):
        return scalar(value, pa.uint8()).cast(kind)
    return to_arrow(np.full(1, value, kind.to_pandas_dtype()), kind)[0]


def to_arrow(array: NDArray[Any], kind: pa.DataType | None = None) -> pa.Array:
    """Return NumPy numbers as an array, by default i64."""
    plain = np.ascontiguousarray(array, None if kind else np.int64)
    return pa.Array.from_buffers(kind or pa.int64(), len(plain), [None, pa.py_buffer(plain)])
