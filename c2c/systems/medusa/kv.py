"""Size of the KV cache, measured once by profiling."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

from c2c.errors import SettingError
from c2c.ranges import SomeShare, check_value
from c2c.systems.program import Device, Recorder
from pallas_kernels.repository import RepositoryWarning

__all__ = ["KvRecord", "kv_bytes_of", "measured_kv", "stored_kv_bytes"]


@dataclass(frozen=True, slots=True)
class KvRecord:
    """Results of profiling a process's memory.

    Attributes:
      held_bytes: with the largest step's temporaries.
      graph_bytes: kept by graphs; `free_bytes` counts them as free.
    """

    free_bytes: int
    held_bytes: int
    graph_bytes: int = 0


def kv_bytes_of(record: KvRecord, memory_fraction: float) -> int:
    """Return the largest KV cache's bytes, a multiple of 2 MiB."""
    check_value(memory_fraction, SomeShare, "memory_fraction")
    whole = record.free_bytes + record.held_bytes
    room = int(memory_fraction * whole) - record.held_bytes - record.graph_bytes
    if room < 1 << 21:
        raise SettingError(
            "memory_fraction", memory_fraction, "enough for the weights and one forward pass"
        )
    return room >> 21 << 21


def measured_kv(recorder: Recorder, graph_bytes: int) -> KvRecord:
    """Return a process's record after largest step and captures."""
    return KvRecord(
        free_bytes=recorder.device.free_bytes() + graph_bytes,
        held_bytes=recorder.held_bytes - graph_bytes,
        graph_bytes=graph_bytes,
    )


def stored_kv_bytes(
    record: KvRecord, device: Device, held_bytes: int, memory_fraction: float
) -> int | None:
    """Return the KV cache's bytes of a record; None, with a warning, if stale."""
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
