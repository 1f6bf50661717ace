"""The KV cache's size, measured once by profiling and used again where it still holds."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

from c2c.errors import SettingError
from c2c.systems.program import Device, Recorder
from pallas_kernels.repository import RepositoryWarning

__all__ = ["KvRecord", "allocate_kv", "kv_bytes_of", "measured_kv", "stored_kv_bytes"]


@dataclass(frozen=True, slots=True)
class KvRecord:
    """What profiling found.

    Attributes:
      free_bytes: left by the largest forward pass, its temporaries included in what is gone.
      held_bytes: that the process held besides.
      graph_bytes: of memory that the graphs keep, counted once: here, and not in `free_bytes`.
      argument_bytes: of the largest program, as the compiler states (`memory_analysis()`); 0: none.
      temporary_bytes: likewise.
    """

    free_bytes: int
    held_bytes: int
    graph_bytes: int = 0
    argument_bytes: int = 0
    temporary_bytes: int = 0


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


def kv_bytes_of(record: KvRecord, memory_fraction: float) -> int:
    """Return how large a cache may be, in bytes of whole 2 MiB.

    Args:
      record: of profiling.
      memory_fraction: of the whole memory that the process may have.

    Raises:
      SettingError: the fraction is outside (0, 1], or leaves nothing.
    """
    if not 0.0 < memory_fraction <= 1.0:
        raise SettingError("memory_fraction", memory_fraction, "a share in (0, 1]")
    whole = record.free_bytes + record.held_bytes
    room = int(memory_fraction * whole) - record.held_bytes - record.graph_bytes
    if room <= 0:
        raise SettingError(
            "memory_fraction", memory_fraction, "enough for the weights and one forward pass"
        )
    return room >> 21 << 21


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
