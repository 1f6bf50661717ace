"""Memory that a process has freed, kept for its next use.

Long runs work on hundreds of megabytes at a time, again and again. By default each array's pages go
back to the system when it is freed and come back one by one, zeroed: on a virtual machine that took
longer than what was computed on them.
"""

from __future__ import annotations

import ctypes

import pyarrow as pa

__all__ = ["keep_freed_memory"]

# Of <malloc.h>: never give back, one heap for all threads, no block outside it.
_OPTIONS = {"M_TRIM_THRESHOLD": (-1, -1), "M_ARENA_MAX": (-8, 1), "M_MMAP_MAX": (-4, 0)}


def keep_freed_memory() -> None:
    """Let this process use again what it frees from now on; without glibc nothing changes."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return
    for option, value in _OPTIONS.values():
        mallopt(option, value)
    pa.set_memory_pool(pa.system_memory_pool())
