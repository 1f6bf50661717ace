"""Folder of compiled code."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
import warnings
from pathlib import Path

__all__ = ["prune", "user_cache", "writable"]

_KEPT = 4  # cache folders of earlier versions that are left for other checkouts


def user_cache() -> Path:
    """Return the folder of caches: C2C_CACHE, or the user's."""
    user = os.environ.get("XDG_CACHE_HOME")
    default = (Path(user) if user else Path.home() / ".cache") / "c2c"
    return Path(os.environ.get("C2C_CACHE") or default)


def prune(current: Path, pattern: str = "*") -> None:
    """Remove earlier versions beside this folder but the latest."""
    others = [p for p in current.parent.glob(pattern) if p.is_dir() and p != current]
    for old in sorted(others, key=lambda p: p.stat().st_mtime)[:-_KEPT]:
        shutil.rmtree(old, ignore_errors=True)


def writable(folder: Path) -> Path:
    """Create and return the folder, or a private one."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return folder
    except OSError as error:
        spare = _private() / folder.name
        spare.mkdir(exist_ok=True)
        warnings.warn(
            f"cannot write {folder} ({error}); compiled code goes to {spare}", stacklevel=3
        )
        return spare


def _private() -> Path:
    shared = Path(tempfile.gettempdir()) / f"c2c-numba-{os.geteuid()}"
    try:
        shared.mkdir(mode=0o700)
    except FileExistsError:
        status = shared.lstat()
        is_ours = stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()
        if not is_ours or stat.S_IMODE(status.st_mode) & 0o077:
            return Path(tempfile.mkdtemp(prefix="c2c-numba-"))  # not kept for the next process
    return shared
