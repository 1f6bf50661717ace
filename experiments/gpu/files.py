"""Tables of rows and archives of results, written atomically; temporary folders."""

from __future__ import annotations

import atexit
import io
import json
import shutil
import tarfile
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from c2c.atomic import atomic_file
from experiments.gpu.cases import Row


def scratch(name: str) -> Path:
    """Return a new folder that is removed when this process ends."""
    folder = tempfile.mkdtemp(prefix=f"c2c-gpu-{name}-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


def write_parquet(path: Path, rows: Sequence[Row], notes: Mapping[str, Any]) -> None:
    """Write rows, whose columns may differ, with `notes` as JSON in the file's metadata."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    names = list(dict.fromkeys(name for row in rows for name in row))
    columns = {name: pa.array([row.get(name) for row in rows]) for name in names}
    table = pa.table(columns).replace_schema_metadata({"c2c": json.dumps(notes)})
    with atomic_file(path) as file:
        pq.write_table(table, file)


def read_parquet(path: Path) -> tuple[list[Row], dict[str, Any]]:
    """Return the rows, each without its empty columns, and the notes."""
    import pyarrow.parquet as pq

    table = pq.read_table(path)
    rows = [{k: v for k, v in row.items() if v is not None} for row in table.to_pylist()]
    notes = (table.schema.metadata or {}).get(b"c2c", b"{}")
    return rows, dict(json.loads(notes))


def pack(folder: Path, archive: Path) -> None:
    """Write all of `folder` into one compressed archive, under the folder's name.

    Unfinished files, whose names begin with a dot or end in ".part", are left out.
    """
    with (
        atomic_file(archive) as file,
        tarfile.open(fileobj=file, mode="w:gz", compresslevel=6) as packed,
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
    """Extract an archive of `pack` into `folder`, over earlier results.

    Raises:
      OSError: the archive cannot be read.
      tarfile.TarError: it is no tar archive.
    """
    with tarfile.open(archive, "r:gz") as packed:
        packed.extractall(folder, filter="data")
