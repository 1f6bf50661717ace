"""Files that a reader sees whole or not at all."""

from __future__ import annotations

import io
import json
import os
import tarfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from experiments.gpu.cases import Row


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a file to write instead of `path`, which it becomes at the end; none is left behind."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        yield temporary
        with temporary.open("rb") as whole:
            os.fsync(whole.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: Path, content: str) -> None:
    """Write `content` so that a reader sees the old file or the new one, never half of it."""
    with replacing(path) as temporary:
        temporary.write_text(content, encoding="utf-8")


def write_json(path: Path, content: Any) -> None:
    """Write `content` as JSON, as `write_text` does."""
    write_text(path, json.dumps(content, indent=2) + "\n")


def write_parquet(path: Path, rows: Sequence[Row], notes: Mapping[str, Any]) -> None:
    """Write rows, whose columns may differ, with `notes` as JSON in the file's metadata."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    names = list(dict.fromkeys(name for row in rows for name in row))
    columns = {name: pa.array([row.get(name) for row in rows]) for name in names}
    table = pa.table(columns).replace_schema_metadata({"c2c": json.dumps(notes)})
    with replacing(path) as temporary:
        pq.write_table(table, temporary)


def read_parquet(path: Path) -> tuple[list[Row], dict[str, Any]]:
    """Return the rows, without the columns that are empty in them, and the notes."""
    import pyarrow.parquet as pq

    table = pq.read_table(path)
    rows = [{k: v for k, v in row.items() if v is not None} for row in table.to_pylist()]
    notes = (table.schema.metadata or {}).get(b"c2c", b"{}")
    return rows, dict(json.loads(notes))


def pack(folder: Path, archive: Path) -> None:
    """Write all of `folder` into one compressed archive, under the folder's name.

    Files that others are still writing, which have a dot in front or end in ".part", are left out.
    """
    with (
        replacing(archive) as temporary,
        tarfile.open(temporary, "w:gz", compresslevel=6) as packed,
    ):
        for path in sorted(folder.rglob("*")):
            if path.name.startswith(".") or path.suffix == ".part" or not path.is_file():
                continue
            try:
                content = path.read_bytes()
            except FileNotFoundError:  # replaced or removed since it was listed
                continue
            entry = tarfile.TarInfo(str(Path(folder.name, path.relative_to(folder))))
            entry.size, entry.mtime = len(content), int(time.time())
            packed.addfile(entry, io.BytesIO(content))


def unpack(archive: Path, folder: Path) -> None:
    """Put the results that `pack` wrote into `folder`, where earlier ones would be.

    Raises:
      OSError: it cannot be read.
      tarfile.TarError: it is no such archive.
    """
    with tarfile.open(archive, "r:gz") as packed:
        packed.extractall(folder, filter="data")
