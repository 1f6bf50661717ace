"""Request records of a run, in parts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

__all__ = ["Records"]


@dataclass(frozen=True, slots=True)
class Records:
    """Parts of a run's records: tables or Parquet files.

    All records of a model are in one part.
    """

    parts: tuple[pa.Table | tuple[Path, ...], ...]

    def read(self, part: int, columns: Sequence[str]) -> pa.Table:
        """Return columns of one part."""
        source = self.parts[part]
        if isinstance(source, pa.Table):
            return source.select(list(columns))
        return _joined([_columns(file, columns) for file in source])

    def during(self, columns: Sequence[str], since_s: float, until_s: float) -> pa.Table:
        """Return a span's requests; failed ones count at arrival."""
        need = list(dict.fromkeys((*columns, "arrival_s", "finished_s")))
        tables = []
        for part in self.parts:
            for table in [part] if isinstance(part, pa.Table) else _row_groups(part, need):
                came, ended = table["arrival_s"].to_numpy(), table["finished_s"].to_numpy()
                is_gone = (ended < since_s) | (np.isnan(ended) & (came < since_s))
                # No expression: its threads free memory after it returns, and abort an exit.
                there = table.filter(pa.array((came <= until_s) & ~is_gone))
                tables.append(there.select(list(columns)))
        return _joined(tables)


def _row_groups(files: Sequence[Path], columns: Sequence[str]) -> Iterator[pa.Table]:
    for file in files:
        with pq.ParquetFile(file) as opened:
            for number in range(opened.num_row_groups):
                yield opened.read_row_group(number, columns=columns)


def _columns(file: Path, columns: Sequence[str]) -> pa.Table:
    # `pq.read_table` imports pandas and more, which takes longer than most files.
    with pq.ParquetFile(file) as opened:
        return opened.read(columns=list(columns)).select(list(columns))


def _joined(tables: Sequence[pa.Table]) -> pa.Table:
    return tables[0] if len(tables) == 1 else pa.concat_tables(tables).unify_dictionaries()
