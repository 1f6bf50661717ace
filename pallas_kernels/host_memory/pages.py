"""Shared pages with their lock and registration, and their tensors as NumPy arrays."""

from __future__ import annotations

import hashlib
import mmap
import os
import re
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from pallas_kernels.host_memory import cuda
from pallas_kernels.host_memory.layout import DTYPES, Entry, Header


@dataclass(frozen=True, slots=True, kw_only=True)
class Residency:
    """Physical memory of one process's mapping of a pool, counted by Linux."""

    rss_bytes: int  # resident, whoever shares it
    pss_bytes: int  # resident, each page divided by the number of processes that map it
    huge_bytes: int  # resident in huge pages


class Pages(mmap.mmap):
    """A mapping that owns its file descriptor, with the lock on it, and its registration.

    Arrays over the pages keep the mapping, lock and registration alive.
    """

    fd: int
    address: int
    registrar: cuda.Registrar | None
    pid: int
    writable: bool

    def pin(self, registrar: cuda.Registrar) -> None:
        """Register the pages with a GPU."""
        registrar.register(self.address, len(self), read_only=not self.writable)
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
    """Map a whole open file; the pages take ownership of its descriptor.

    Linux is asked for huge pages: a GPU and the IOMMU need an entry of their tables for each page,
    512 times fewer with them. It gives them to files in shared memory as `shmem_enabled` says.
    """
    prot = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
    try:
        pages = Pages(fd, nbytes, flags=mmap.MAP_SHARED, prot=prot)
    except BaseException:
        os.close(fd)
        raise
    pages.fd, pages.registrar, pages.pid, pages.writable = fd, None, os.getpid(), writable
    pages.address = np.frombuffer(pages, np.uint8, 1).ctypes.data
    with suppress(OSError):  # a kernel without huge pages
        pages.madvise(mmap.MADV_HUGEPAGE)
    return pages


def release_or_leave(pages: Pages) -> None:
    """Release now, or when the last view of the pages (kept by a `fill`) is gone."""
    with suppress(BufferError):
        pages.release()


def root_of(pages: Pages, entry: Entry) -> np.ndarray:
    """Return the bytes of a tensor. Views keep this array alive, which keeps the pages."""
    return np.frombuffer(pages, np.uint8, count=entry.spec.nbytes, offset=entry.offset)


def shaped(root: np.ndarray, entry: Entry) -> np.ndarray:
    """Return the bytes of a tensor in its shape and type."""
    return root.view(DTYPES[entry.spec.dtype]).reshape(entry.spec.shape)


def tensor_of(pages: Pages, entry: Entry) -> np.ndarray:
    """Return a tensor over the pages."""
    return shaped(root_of(pages, entry), entry)


def hashed(pages: Pages, header: Header) -> Header:
    """Return the header with the hash of each tensor's present bytes."""

    def sha256(entry: Entry) -> Entry:
        return replace(entry, sha256=hashlib.sha256(root_of(pages, entry)).hexdigest())

    with ThreadPoolExecutor(os.cpu_count()) as pool:  # hashlib lets other threads run
        entries = dict(zip(header.entries, pool.map(sha256, header.entries.values()), strict=True))
    return replace(header, entries=entries)


def residency(address: int, nbytes: int) -> Residency:
    """Return the physical memory of a mapping of this process, from /proc/self/smaps."""
    huge = "ShmemPmdMapped", "FilePmdMapped"
    values, inside = dict.fromkeys(("Rss", "Pss", *huge), 0), False
    for line in Path("/proc/self/smaps").read_text("utf-8", "replace").splitlines():
        if span := re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line):
            inside = address <= int(span[1], 16) < address + nbytes
        elif inside and (entry := re.match(r"(\w+): +(\d+) kB", line)) and entry[1] in values:
            values[entry[1]] += 1024 * int(entry[2])
    return Residency(
        rss_bytes=values["Rss"],
        pss_bytes=values["Pss"],
        huge_bytes=sum(values[name] for name in huge),
    )
