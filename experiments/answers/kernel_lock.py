"""The lock of a study's file: the system's, which goes with the process that holds it."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from optuna.storages.journal._file import BaseJournalFileLock

__all__ = ["KernelLock"]


class KernelLock(BaseJournalFileLock):
    """What Optuna's journal takes for a lock; its own are files, which a killed process leaves.

    Args:
      path: of the file that is locked, made if it is not there.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._handle = -1

    def acquire(self) -> bool:
        """Wait for the lock and take it."""
        handle = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
        except BaseException:
            os.close(handle)
            raise
        self._handle = handle
        return True

    def release(self) -> None:
        """Give the lock up."""
        os.close(self._handle)
        self._handle = -1
