"""Size of the KV cache, measured once by profiling and reused while enough memory is free."""

from __future__ import annotations

import warnings

from c2c.hardware import KvRecord, kv_bytes_of
from c2c.systems.program import Device, Recorder
from pallas_kernels.repository import RepositoryWarning

__all__ = ["KvRecord", "kv_bytes_of", "measured_kv", "stored_kv_bytes"]


def measured_kv(recorder: Recorder, graph_bytes: int) -> KvRecord:
    """Return the record of a process that has run its largest step and captured its graphs.

    Args:
      recorder: recorder of the process.
      graph_bytes: bytes of the allocations that its graphs keep.
    """
    return KvRecord(
        free_bytes=recorder.device.free_bytes() + graph_bytes,
        held_bytes=recorder.held_bytes - graph_bytes,
        graph_bytes=graph_bytes,
    )


def stored_kv_bytes(
    record: KvRecord, device: Device, held_bytes: int, memory_fraction: float
) -> int | None:
    """Return the KV cache's bytes from a record; None, with a warning, if it must be profiled.

    The record holds if at least as much memory is free as then, less what this process holds
    beyond the record's bytes. Another process on the GPU may take that memory.

    Args:
      record: record of an earlier start with the same key.
      device: device of this process.
      held_bytes: bytes that this process holds.
      memory_fraction: see `kv_bytes_of`.
    """
    needed = record.free_bytes - max(0, held_bytes - record.held_bytes)
    free = device.free_bytes()
    if free < needed:
        warnings.warn(
            f"{free} bytes of device memory are free; the recorded size of the KV cache needs "
            f"{needed}. The KV cache is profiled again.",
            RepositoryWarning,
            stacklevel=2,
        )
        return None
    return kv_bytes_of(record, memory_fraction)
