"""Counting what XLA compiles."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import jax


@contextmanager
def compilations(*, traced: bool = False) -> Iterator[list[str]]:
    """Collect one entry for each program that XLA compiles inside the block.

    Args:
      traced: whether tracing and lowering count too.
    """
    seen: list[str] = []

    def listen(event: str, duration_s: float, **kwargs: Any) -> None:
        wanted = "/jax/core/compile/" in event if traced else "backend_compile_duration" in event
        if wanted:
            seen.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        yield seen
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
