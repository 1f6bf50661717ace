"""A pool's file: created atomically."""

from __future__ import annotations

import errno
import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from pallas_kernels.host_memory.errors import PoolError, PoolInUseError, PoolSpaceError

_POLL_S = 0.02
_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - where Linux mounts POSIX shared memory


def shared_memory_path(name: str) -> Path:
    """Return the path of the POSIX shared memory object `name`.

    Better for a GPU: Linux may refuse to pin pages of disk files.

    Raises:
      PoolError: no plain file name, or no shared memory.
    """
    if not name or "/" in name or name.startswith("."):
        raise PoolError(f"name={name!r}: expected a plain file name")
    if not _SHARED_MEMORY.is_dir():
        raise PoolError(f"{_SHARED_MEMORY}: expected a folder, where Linux has shared memory")
    return _SHARED_MEMORY / name


# Every user holds a shared `flock` on the file while it maps the file. The kernel drops the lock
# when a process ends, even if it is killed, so the count stays right.
def open_file(path: Path) -> int:
    """Open a pool's file for reading and writing, with a shared lock.

    Raises:
      PoolError: no file, or no permission.
    """
    while True:
        try:
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:
            raise PoolError(f"{path}: expected a pool of this user ({error.strerror})") from error
        fcntl.flock(fd, fcntl.LOCK_SH)
        if is_at(fd, path):
            return fd
        os.close(fd)  # removed or replaced between the two calls


# One process writes the file as `<path>.partial` under an exclusive lock and renames it when it is
# complete. The next writer overwrites the partial file of a process that died.
@contextmanager
def new_file(path: Path, *, wait_s: float) -> Iterator[int | None]:
    """Yield a file for a new pool, complete at `path` on success, or None."""
    partial = path.with_name(path.name + ".partial")
    fd = _exclusive(path, partial, wait_s)
    if fd is None:
        yield None
        return
    try:
        os.ftruncate(fd, 0)
        yield fd
        fcntl.flock(fd, fcntl.LOCK_SH)
        os.link(partial, path)  # fails where a rename would replace
    except BaseException as error:
        partial.unlink(missing_ok=True)
        os.close(fd)
        if isinstance(error, FileExistsError):
            raise PoolError(f"{path}: another process created a file there") from error
        raise
    partial.unlink()


def remove_partial(path: Path) -> None:
    """Remove a dead process's partial file."""
    partial = path.with_name(path.name + ".partial")
    try:
        fd = os.open(partial, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if is_at(fd, partial):
            partial.unlink()
    except BlockingIOError:
        return
    finally:
        os.close(fd)


def reserve(fd: int, nbytes: int, path: Path) -> None:
    """Allocate `nbytes` for the file: later writes cannot fail.

    Raises:
      PoolSpaceError: too little free space.
    """
    stat = os.fstatvfs(fd)
    free = stat.f_bavail * stat.f_frsize
    if nbytes > free:
        raise PoolSpaceError(f"{path}: needs {nbytes} bytes, its file system has {free} free")
    try:
        os.posix_fallocate(fd, 0, nbytes)
    except OSError as error:
        if error.errno in {errno.ENOSPC, errno.EFBIG, errno.EDQUOT}:
            raise PoolSpaceError(f"{path}: needs {nbytes} bytes ({error.strerror})") from error
        raise


def try_exclusive(fd: int) -> bool:
    """Make the shared lock exclusive if there is no other user."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        fcntl.flock(fd, fcntl.LOCK_SH)  # a failed conversion may have dropped it
        return False
    return True


def is_at(fd: int, path: Path) -> bool:
    """Return whether `path` still names the open file."""
    try:
        there = path.stat()
    except FileNotFoundError:
        return False
    here = os.fstat(fd)
    return (there.st_dev, there.st_ino) == (here.st_dev, here.st_ino)


def users(path: Path) -> tuple[int, ...]:
    """Return the sorted ids of visible processes with the pool open."""
    stat = path.stat()
    device = f"{os.major(stat.st_dev):02x}:{os.minor(stat.st_dev):02x}:{stat.st_ino}"
    pids = []
    with suppress(FileNotFoundError):  # no /proc: nobody can be named
        for line in Path("/proc/locks").read_text("ascii").splitlines():
            fields = line.split()
            if fields[1] == "FLOCK" and fields[5] == device:
                pids.append(int(fields[4]))
    return tuple(sorted(pids))


def remove_pool(path: Path | str, *, force: bool = False) -> None:
    """Remove a pool's file, damaged or not.

    Args:
      force: also remove the name of a used pool; users keep their pages.

    Raises:
      PoolInUseError: open in a process, or this one.
      PoolError: no file.
    """
    path = Path(path)
    fd = open_file(path)
    try:
        if not force and not try_exclusive(fd):
            mine = os.getpid()
            others = list(users(path))
            if mine in others:
                others.remove(mine)  # the lock of this very call
            named = ", ".join(map(str, others)) or "that cannot be seen from here"
            raise PoolInUseError(f"{path}: still open in processes {named}; close it there first")
        path.unlink(missing_ok=True)
    finally:
        os.close(fd)


def _exclusive(path: Path, partial: Path, wait_s: float) -> int | None:
    deadline = time.monotonic() + wait_s
    while not path.exists():
        try:
            fd = os.open(partial, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise PoolError(f"{path}: cannot be created ({error.strerror})") from error
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            if time.monotonic() >= deadline:
                raise PoolInUseError(
                    f"{path}: another process is creating it, waited {wait_s} s"
                ) from None
            time.sleep(_POLL_S)
            continue
        if is_at(fd, partial):
            if not path.exists():
                return fd
            partial.unlink()
        os.close(fd)
    return None
