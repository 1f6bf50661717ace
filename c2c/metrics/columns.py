"""Columns of a table as NumPy arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

__all__ = ["codes_of", "numbers_of", "values_of"]


def codes_of(records: pa.Table, column: str) -> tuple[npt.NDArray[np.int32], list[str]]:
    """Return codes (i32) and their names."""
    values = records.column(column)
    if not pa.types.is_dictionary(values.type):
        values = values.dictionary_encode()
    # chunks may have dictionaries of their own; after unifying, equal codes have equal names
    values = values.unify_dictionaries()
    names = values.chunk(0).dictionary.to_pylist() if values.num_chunks else []
    parts = [_plain(chunk.indices) for chunk in values.chunks]
    return np.concatenate(parts).astype(np.int32) if parts else np.zeros(0, np.int32), names


def numbers_of(records: pa.Table, column: str) -> npt.NDArray[np.float64]:
    """Return a column of numbers as f64."""
    return np.asarray(values_of(records, column), dtype=np.float64)


def values_of(records: pa.Table, column: str) -> npt.NDArray[Any]:
    """Return a column as NumPy values."""
    values = records.column(column)
    if pa.types.is_dictionary(values.type):
        codes, names = codes_of(records, column)
        return np.array(names, dtype=object)[codes]
    if not values.num_chunks:
        return np.zeros(0, values.type.to_pandas_dtype())
    parts = [_plain(chunk) for chunk in values.chunks]
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _plain(numbers: pa.Array) -> npt.NDArray[Any]:
    # pyarrow's own conversion to NumPy imports pandas, which takes longer than most runs.
    return np.asarray(numbers) if numbers.null_count else np.from_dlpack(numbers)
