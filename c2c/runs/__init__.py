"""Run folders: configuration and provenance first, atomic results, resume keyed by content."""

from c2c.atomic import atomic_file, write_json, write_text
from c2c.runs.content import content_key, file_key, plain, source_key
from c2c.runs.guard import check_folder
from c2c.runs.locking import FolderInUse, is_in_use
from c2c.runs.progress import progress_bar
from c2c.runs.provenance import provenance
from c2c.runs.room import check_room, storage_error
from c2c.runs.rundir import RunDir
from c2c.runs.tables import ParquetStream, write_parquet

__all__ = [
    "FolderInUse",
    "ParquetStream",
    "RunDir",
    "atomic_file",
    "check_folder",
    "check_room",
    "content_key",
    "file_key",
    "is_in_use",
    "plain",
    "progress_bar",
    "provenance",
    "source_key",
    "storage_error",
    "write_json",
    "write_parquet",
    "write_text",
]
