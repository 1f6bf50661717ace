"""Columns for fields without format or setting."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from c2c.errors import DataError
from c2c.workloads.names import likely
from c2c.workloads.parsing import GOOD, times, token_counts

__all__ = ["guessed_columns", "mapping", "numeric"]

_SAMPLE_ROWS = 1000


def guessed_columns(
    path: Path, batch: pa.RecordBatch | None, columns: Sequence[str], fields: Iterable[str]
) -> dict[str, str]:
    """Return field -> likeliest column by name and cells."""
    result: dict[str, str] = {}
    for field in fields:
        free = [c for c in columns if c not in result.values() and _may_hold(field, batch, c)]
        fit = likely(field, free)
        if len(fit) > 1:
            absent = f", or {mapping({field: ''})} for none" if field == "model" else ""
            raise DataError(
                str(path),
                f"{field} may be the column {' or '.join(map(repr, fit))}",
                f"Name it with {mapping({field: fit[0]})}{absent}.",
            )
        if fit:
            result[field] = fit[0]
    return result


def numeric(batch: pa.RecordBatch | None, columns: Iterable[str]) -> list[str]:
    """Return columns with positive whole numbers in half the first rows."""
    return [c for c in columns if batch is not None and _may_hold("prompt_tokens", batch, c)]


def mapping(columns: Mapping[str, str]) -> str:
    """Return the setting `workload.columns`, quoted for a shell."""
    quoted = {f: c if re.fullmatch(r"[\w .<>-]+", c) else f'"{c}"' for f, c in columns.items()}
    pairs = ", ".join(f"{field}: {column}" for field, column in quoted.items())
    return f"'workload.columns={{{pairs}}}'"


def _may_hold(field: str, batch: pa.RecordBatch | None, column: str) -> bool:
    if batch is None or field == "model":
        return True
    cells = batch.column(column).slice(0, _SAMPLE_ROWS)
    if field == "arrival_s":
        verdict = np.full(len(cells), GOOD, np.int8)
        values = times(cells, verdict)
        good = verdict == GOOD
        if len(cells) > 1 and np.unique(values[good]).size < 2:
            return False
    else:
        counts = token_counts(cells)
        good = (counts > 0) & (counts == np.floor(counts))
    return bool(2 * np.count_nonzero(good) >= len(cells))
