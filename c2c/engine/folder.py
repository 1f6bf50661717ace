"""Temporary folder of an engine, for socket and weight files."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from pathlib import Path

__all__ = ["OwnFolder"]

_PREFIX = "c2c-engine-"
_LOCK = "lock"


class OwnFolder:
    """New temporary folder, locked by its process; killed engines' are removed."""

    def __init__(self, parent: Path | None = None) -> None:
        """Create and lock the folder; None: in the temporary folder."""
        parent = parent or Path(tempfile.gettempdir())
        for folder in parent.glob(f"{_PREFIX}*"):
            _remove_left(folder)
        self.path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
        self._lock = os.open(self.path / _LOCK, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)

    def remove(self) -> None:
        """Remove the folder and its contents."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


def _remove_left(folder: Path) -> None:
    try:
        if folder.stat().st_uid != os.getuid():
            return
        lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder, ignore_errors=True)
    except BlockingIOError:
        return  # its engine lives
    finally:
        os.close(lock)
