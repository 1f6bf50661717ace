"""The KV cache's size, measured once by profiling and used again where it still holds."""

from __future__ import annotations

import warnings

from c2c.hardware import KvRecord, kv_bytes_of
from c2c.systems.program import Device, Recorder
from pallas_kernels.repository import RepositoryWarning

__all__ = ["KvRecord", "allocate_kv", "kv_bytes_of", "measured_kv", "stored_kv_bytes"]


def measured_kv(recorder: Recorder, graph_bytes: int) -> KvRecord:
    """Return what a process finds that has run its largest step and captured its graphs.

    Args:
      recorder: of the process.
      graph_bytes: of the allocations that its graphs keep.
    """
    return KvRecord(
        free_bytes=recorder.device.free_bytes() + graph_bytes,
        held_bytes=recorder.held_bytes - graph_bytes,
        graph_bytes=graph_bytes,
    )


def stored_kv_bytes(
    record: KvRecord, device: Device, held_bytes: int, memory_fraction: float
) -> int | None:
    """Return the cache's size without profiling; None: profile, and say why.

    The stored size holds if at least as much memory is free as was, less what this process has
    allocated since. Another process on the GPU breaks that.

    Args:
      record: stored by an earlier start of the same key.
      device: of this process.
      held_bytes: that this process holds by now.
      memory_fraction: see `kv_bytes_of`.
    """
    needed = record.free_bytes - max(0, held_bytes - record.held_bytes)
    free = device.free_bytes()
    if free < needed:
        warnings.warn(
            f"{free} bytes of device memory are free, {needed} were when the KV cache was "
            "measured. It is profiled anew.",
            RepositoryWarning,
            stacklevel=2,
        )
        return None
    return kv_bytes_of(record, memory_fraction)


def allocate_kv(recorder: Recorder, nbytes: int) -> int:
    """Return one contiguous region, of which blocks are carved."""
    return recorder.allocate(nbytes, pool="kv")
