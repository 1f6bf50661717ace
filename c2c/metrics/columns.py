"""Columns of a table as NumPy arrays; names as codes."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

__all__ = ["codes_of", "numbers_of"]


def codes_of(records: pa.Table, column: str) -> tuple[npt.NDArray[np.int32], list[str]]:
    """Return each row's code, and what the codes stand for."""
    values = records.column(column)
    if not pa.types.is_dictionary(values.type):
        values = values.dictionary_encode()
    # chunks may bring dictionaries of their own; after unifying, all codes mean the same
    values = values.unify_dictionaries()
    names = values.chunk(0).dictionary.to_pylist() if values.num_chunks else []
    parts = [np.asarray(chunk.indices) for chunk in values.chunks]
    return np.concatenate(parts).astype(np.int32) if parts else np.zeros(0, np.int32), names


def numbers_of(records: pa.Table, column: str) -> npt.NDArray[np.float64]:
    """Return a column of numbers."""
    return np.asarray(records.column(column).to_numpy(), dtype=np.float64)
