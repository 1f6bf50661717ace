"""Parquet files, written atomically; equal tables give equal bytes."""

from __future__ import annotations

from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pyarrow as pa
import pyarrow.parquet as pq

from c2c.atomic import atomic_file

__all__ = ["ParquetStream", "write_parquet"]

# Fixed, so that bytes depend only on the rows. No option records a time.
OPTIONS: dict[str, Any] = {"compression": "zstd", "compression_level": 1}
ROW_GROUP = 1 << 17


def _options(schema: pa.Schema) -> dict[str, Any]:
    # Most columns are numbers with few repeats. Parquet would build and abandon a dictionary for
    # each row group, for twice the time and a fifth more bytes.
    names = [f.name for f in schema if pa.types.is_dictionary(f.type)]
    return OPTIONS | {"use_dictionary": names}


def write_parquet(path: Path, table: pa.Table) -> None:
    """Write a table atomically."""
    with atomic_file(path) as file:
        pq.write_table(table, file, row_group_size=ROW_GROUP, **_options(table.schema))


class _Abandoned(Exception):
    pass


class ParquetStream:
    """A Parquet file, written in batches; its name appears when closed.

    Memory holds one row group, independent of batches. An error in the `with` block leaves no file.
    """

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        self.path = path
        self.rows = 0
        self._schema = schema
        with ExitStack() as stack:
            file = stack.enter_context(atomic_file(path))
            self._writer = pq.ParquetWriter(file, schema, **_options(schema))
            self._open = stack.pop_all()
        self._waiting: list[pa.Table] = []
        self._waiting_rows = 0

    def append(self, batch: pa.Table) -> None:
        """Add rows.

        Raises:
          ValueError: another schema.
        """
        if batch.schema != self._schema:
            raise ValueError(f"batch of schema {batch.schema}, file of schema {self._schema}")
        self.rows += len(batch)
        self._waiting.append(batch)
        self._waiting_rows += len(batch)
        while self._waiting_rows >= ROW_GROUP:
            joined = _join(self._waiting)
            self._writer.write_table(joined.slice(0, ROW_GROUP), row_group_size=ROW_GROUP)
            rest = joined.slice(ROW_GROUP)
            self._waiting, self._waiting_rows = [rest], len(rest)

    def close(self) -> None:
        """Write the remaining rows; name the file."""
        try:
            if self._waiting_rows or not self.rows:
                self._writer.write_table(_join(self._waiting or [self._schema.empty_table()]))
            self._writer.close()
        except BaseException:
            self.abandon()
            raise
        self._open.close()

    def abandon(self) -> None:
        """Drop everything written so far."""
        # Both flush buffers, which fails on a full disk; their content is dropped anyway.
        with suppress(OSError):
            self._writer.close()
        with suppress(_Abandoned, OSError), self._open:
            raise _Abandoned

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.abandon()


def _join(tables: list[pa.Table]) -> pa.Table:
    """Return one chunk a column, as pages must not depend on batches."""
    return pa.concat_tables(tables).unify_dictionaries().combine_chunks()
