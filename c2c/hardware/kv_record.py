"""Sizes of KV caches that profiling has found, and a check that they still hold."""

from __future__ import annotations

from dataclasses import dataclass

from c2c.errors import SettingError

__all__ = ["KvRecord", "check_memory_fraction", "kv_bytes_of"]


@dataclass(frozen=True, slots=True)
class KvRecord:
    """Results of profiling.

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

    @property
    def whole_bytes(self) -> int:
        """Bytes that the process may have."""
        return self.free_bytes + self.held_bytes


def check_memory_fraction(memory_fraction: float) -> None:
    """Raise SettingError unless this is a share of the memory."""
    if not 0.0 < memory_fraction <= 1.0:
        raise SettingError("memory_fraction", memory_fraction, "a share in (0, 1]")


def kv_bytes_of(record: KvRecord, memory_fraction: float) -> int:
    """Return the largest KV cache in bytes, a multiple of 2 MiB.

    Args:
      record: of profiling.
      memory_fraction: of the whole memory that the process may have.

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
