"""Memory found by profiling, and the size of the KV cache that follows from it."""

from __future__ import annotations

from dataclasses import dataclass

from c2c.errors import SettingError
from c2c.ranges import SomeShare, check_value

__all__ = ["KvRecord", "check_memory_fraction", "kv_bytes_of"]


@dataclass(frozen=True, slots=True)
class KvRecord:
    """Results of profiling a process's memory.

    Attributes:
      free_bytes: bytes free beside `held_bytes`.
      held_bytes: bytes that the process held, its largest step's temporaries included.
      graph_bytes: bytes that captured graphs keep; `free_bytes` counts them as free.
      argument_bytes: the largest program's arguments as the compiler states them
        (`memory_analysis()`); 0: not stated.
      temporary_bytes: its temporaries, likewise.
    """

    free_bytes: int
    held_bytes: int
    graph_bytes: int = 0
    argument_bytes: int = 0
    temporary_bytes: int = 0

    @property
    def whole_bytes(self) -> int:
        """Bytes that the process may use in all."""
        return self.free_bytes + self.held_bytes


def check_memory_fraction(memory_fraction: float) -> None:
    """Raise SettingError unless the fraction is in (0, 1]."""
    check_value(memory_fraction, SomeShare, "memory_fraction")


def kv_bytes_of(record: KvRecord, memory_fraction: float) -> int:
    """Return the largest KV cache in bytes, a multiple of 2 MiB.

    Args:
      record: results of profiling.
      memory_fraction: share of `record.whole_bytes` that the process may use.

    Raises:
      SettingError: the fraction is outside (0, 1], or leaves nothing.
    """
    check_memory_fraction(memory_fraction)
    room = int(memory_fraction * record.whole_bytes) - record.held_bytes - record.graph_bytes
    if room < 1 << 21:
        raise SettingError(
            "memory_fraction", memory_fraction, "enough for the weights and one forward pass"
        )
    return room >> 21 << 21
