"""The compiled event loop, cached on disk under a key made of its sources' content.

Numba's own cache looks only at the file that holds the entry function: after a change in a policy
it would go on answering with the old machine code. Here every change of a source, of Numba or of
NumPy leads to another cache folder.
"""

from __future__ import annotations

import functools
import hashlib
import os
import platform
import shutil
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import llvmlite
import numba
import numpy as np

__all__ = ["cache_dir", "cache_key", "compiled_drive"]

_KEPT = 4  # cache folders of earlier versions that are left for other checkouts


def _sources() -> list[Path]:
    package = Path(__file__).resolve().parent.parent
    files = [package / "cost" / name for name in ("attention.py", "contention.py")]
    for folder in ("policies", "serving", "simulator"):
        files += sorted((package / folder).glob("*.py"))
    return files


def cache_key(sources: list[Path] | None = None) -> str:
    """Return a key of the content of all sources that the compiled code is made of."""
    digest = hashlib.sha256()
    for version in (platform.python_version(), numba.__version__, llvmlite.__version__):
        digest.update(version.encode())
    digest.update(np.__version__.encode())
    for path in _sources() if sources is None else sources:
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:20]


def cache_dir() -> Path:
    """Return the folder of this version's machine code (env C2C_CACHE or the user's cache)."""
    user = os.environ.get("XDG_CACHE_HOME")
    default = (Path(user) if user else Path.home() / ".cache") / "c2c"
    return Path(os.environ.get("C2C_CACHE") or default) / "numba" / cache_key()


def _prune(current: Path) -> None:
    others = [p for p in current.parent.iterdir() if p.is_dir() and p != current]
    for old in sorted(others, key=lambda p: p.stat().st_mtime)[:-_KEPT]:
        shutil.rmtree(old, ignore_errors=True)


def _writable(folder: Path) -> Path:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return folder
    except OSError as error:
        spare = Path(tempfile.gettempdir()) / "c2c-numba" / folder.name
        warnings.warn(
            f"cannot write {folder} ({error}); compiled code goes to {spare}", stacklevel=3
        )
        spare.mkdir(parents=True, exist_ok=True)
        return spare


@functools.cache
def compiled_drive() -> Callable[..., int]:
    """Return `core.drive` compiled; the first call on a machine takes tens of seconds."""
    from c2c.simulator.core import drive

    folder = _writable(cache_dir())
    _prune(folder)
    config: Any = numba.config
    before = config.CACHE_DIR
    config.CACHE_DIR = str(folder)
    try:
        compiled: Callable[..., int] = numba.njit(cache=True)(drive)
    finally:
        config.CACHE_DIR = before
    return compiled
