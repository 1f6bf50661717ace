"""Lock of a run folder, also on shared file systems."""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path

from c2c.errors import SettingError
from c2c.runs.ownership import LOCK

__all__ = ["FolderInUse", "is_in_use", "take_lock"]

# `is_in_use` holds the lock for a moment, as does a run that gives a folder up.
_ATTEMPTS, _PAUSE_S = 5, 0.02


class FolderInUse(SettingError):
    """Error for a folder in use."""


def take_lock(root: Path, field: str = "out") -> int:
    """Take the folder's lock for life; return its descriptor."""
    for _ in range(_ATTEMPTS):
        handle = os.open(root / LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(handle), (root / LOCK).stat()):
                return handle
        except (BlockingIOError, FileNotFoundError):
            time.sleep(_PAUSE_S)
        except BaseException:
            os.close(handle)
            raise
        os.close(handle)
    raise FolderInUse(
        field, str(root), "a folder that no other run uses", "Wait for it or choose another."
    )


def is_in_use(root: Path) -> bool:
    """Return whether a process uses the folder."""
    try:
        handle = os.open(root / LOCK, os.O_RDONLY | os.O_NOFOLLOW)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(handle)
    return False
