"""Run folders: configuration, atomic results, resume by content."""

from c2c.atomic import atomic_file, write_json, write_text
from c2c.runs.content import content_key, file_key, plain, source_key
from c2c.runs.fields import settings_by_path, summary_fields
from c2c.runs.found import (
    NOT_INPUTS,
    FoundRun,
    collect,
    find_runs,
    read_run,
    settings_columns,
    tidy,
)
from c2c.runs.guard import check_folder
from c2c.runs.locking import FolderInUse, is_in_use
from c2c.runs.progress import Show, Weighed, progress_bar
from c2c.runs.provenance import provenance
from c2c.runs.room import check_room, storage_error
from c2c.runs.rundir import RunDir
from c2c.runs.tables import ParquetStream, write_parquet

__all__ = [
    "NOT_INPUTS",
    "FolderInUse",
    "FoundRun",
    "ParquetStream",
    "RunDir",
    "Show",
    "Weighed",
    "atomic_file",
    "check_folder",
    "check_room",
    "collect",
    "content_key",
    "file_key",
    "find_runs",
    "is_in_use",
    "plain",
    "progress_bar",
    "provenance",
    "read_run",
    "settings_by_path",
    "settings_columns",
    "source_key",
    "storage_error",
    "summary_fields",
    "tidy",
    "write_json",
    "write_parquet",
    "write_text",
]
