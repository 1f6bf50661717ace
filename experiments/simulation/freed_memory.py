"""Reuse of freed memory within a process."""

from __future__ import annotations

import ctypes

import pyarrow as pa

__all__ = ["keep_freed_memory"]

# From <malloc.h>: never trim, one heap for all threads, no block outside it.
_OPTIONS = {"M_TRIM_THRESHOLD": (-1, -1), "M_ARENA_MAX": (-8, 1), "M_MMAP_MAX": (-4, 0)}


def keep_freed_memory() -> None:
    """Make this process reuse freed memory, with glibc."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return
    for option, value in _OPTIONS.values():
        mallopt(option, value)
    pa.set_memory_pool(pa.system_memory_pool())
