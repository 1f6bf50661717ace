"""Shared pages with their lock and registration."""

from __future__ import annotations

import ctypes
import mmap
import os
from contextlib import suppress

import numpy as np

from pallas_kernels.host_memory import cuda
from pallas_kernels.host_memory.errors import PoolError
from pallas_kernels.host_memory.layout import DTYPES, Entry


class Pages(mmap.mmap):
    """A mapping that owns its file descriptor, lock and registration, kept alive by its arrays."""

    fd: int
    address: int
    registrar: cuda.Registrar | None
    pid: int

    def pin(self, registrar: cuda.Registrar) -> None:
        """Register the pages with a GPU, read-only or, if refused, writable."""
        try:
            registrar.register(self.address, len(self), read_only=True)
        except PoolError as error:
            both = mmap.PROT_READ | mmap.PROT_WRITE
            if ctypes.CDLL(None).mprotect(ctypes.c_void_p(self.address), len(self), both):
                raise PoolError(f"{error}; pages cannot be made writable") from error
            registrar.register(self.address, len(self), read_only=False)
        self.registrar, self.pid = registrar, os.getpid()

    def release(self) -> None:
        """Unregister, unmap and drop the lock."""
        if self.closed:
            return
        registrar, self.registrar = self.registrar, None
        if registrar is not None and self.pid == os.getpid():  # a fork has no registration
            registrar.unregister(self.address)
        self.close()
        os.close(self.fd)

    def __del__(self) -> None:
        # Runs when the last array over the pages is gone.
        if not self.closed and hasattr(self, "registrar"):
            self.release()


def map_pages(fd: int, nbytes: int, *, writable: bool) -> Pages:
    """Map a whole open file, if possible in huge pages."""
    prot = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
    try:
        pages = Pages(fd, nbytes, flags=mmap.MAP_SHARED, prot=prot)
    except BaseException:
        os.close(fd)
        raise
    pages.fd, pages.registrar, pages.pid = fd, None, os.getpid()
    pages.address = np.frombuffer(pages, np.uint8, 1).ctypes.data
    with suppress(OSError):  # a kernel without huge pages
        pages.madvise(mmap.MADV_HUGEPAGE)
    return pages


def release_or_leave(pages: Pages) -> None:
    """Release now, or after the last view of the pages."""
    with suppress(BufferError):
        pages.release()


def root_of(pages: Pages, entry: Entry) -> np.ndarray:
    """Return a tensor's bytes; views of this array keep the pages alive."""
    return np.frombuffer(pages, np.uint8, count=entry.spec.nbytes, offset=entry.offset)


def shaped(root: np.ndarray, entry: Entry) -> np.ndarray:
    """Return a tensor's bytes in its shape and type."""
    return root.view(DTYPES[entry.spec.dtype]).reshape(entry.spec.shape)
