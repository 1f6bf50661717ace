"""Files that a reader sees whole or not at all."""

from __future__ import annotations

import json
import os
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.gpu.cases import Row


def write_text(path: Path, content: str) -> None:
    """Write `content` so that a reader sees the old file or the new one, never half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(content, encoding="utf-8")
    _publish(temporary, path)


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
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    pq.write_table(table, temporary)
    _publish(temporary, path)


def read_parquet(path: Path) -> tuple[list[Row], dict[str, Any]]:
    """Return the rows, without the columns that are empty in them, and the notes."""
    import pyarrow.parquet as pq

    table = pq.read_table(path)
    rows = [{k: v for k, v in row.items() if v is not None} for row in table.to_pylist()]
    notes = (table.schema.metadata or {}).get(b"c2c", b"{}")
    return rows, dict(json.loads(notes))


def pack(folder: Path, archive: Path) -> None:
    """Write all of `folder` into one compressed archive, under the folder's name."""
    archive.parent.mkdir(parents=True, exist_ok=True)
    temporary = archive.with_name(f".{archive.name}.{os.getpid()}")
    with tarfile.open(temporary, "w:gz") as packed:
        packed.add(folder, arcname=folder.name)
    _publish(temporary, archive)


def _publish(temporary: Path, path: Path) -> None:
    """Give a complete file its name once it is on disk."""
    with temporary.open("rb") as whole:
        os.fsync(whole.fileno())
    temporary.replace(path)
