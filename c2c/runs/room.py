"""Check of a folder's permissions and room."""

from __future__ import annotations

import errno
import os
import resource
import shutil
import tempfile
from pathlib import Path

from c2c.errors import DataError, SettingError

__all__ = ["check_room", "storage_error"]

# Errors of a write that exceeds the disk, a quota or a limit of the process.
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


def check_room(folder: Path, needs_bytes: int = 0, field: str = "out") -> None:
    """Raise unless the folder, or nearest existing parent, can be written; leave no trace.

    Args:
      needs_bytes: estimated bytes, in one file.
      field: the folder's setting.

    Raises:
      SettingError: no permission, or too little room.
    """
    there = folder
    while not there.exists() and there != there.parent:
        there = there.parent
    if not there.is_dir():
        raise SettingError(field, str(folder), "a folder", f"{there} is no folder.")
    try:
        with tempfile.TemporaryFile(dir=there) as probe:
            probe.write(b"\0")
            probe.flush()
            os.fsync(probe.fileno())
        free = shutil.disk_usage(there).free
    except OSError as error:
        why = error.strerror or str(error)
        raise SettingError(field, str(folder), f"a folder that can be written ({why})") from error
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
    allowed = free if limit == resource.RLIM_INFINITY else min(free, limit)
    if allowed < needs_bytes:
        why = "The disk has" if allowed == free else "The limit of a file (ulimit -f) is"
        raise SettingError(
            field,
            str(folder),
            f"a folder with room for about {_megabytes(needs_bytes)}",
            f"{why} {_megabytes(allowed)}.",
        )


def storage_error(error: OSError, folder: Path) -> DataError:
    """Return the error for a failed file operation."""
    why = error.strerror or str(error)
    if error.errno in _FULL:
        hint = "Make room, or choose another folder."
        return DataError(str(folder), f"cannot be written any further ({why})", hint)
    return DataError(str(error.filename or folder), f"cannot be used ({why})")


def _megabytes(count: int) -> str:
    return f"{count / 1e6:,.1f} MB"
