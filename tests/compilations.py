"""Counting what XLA compiles."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import jax


@contextmanager
def compilations() -> Iterator[list[str]]:
    """Collect one entry for each program that XLA compiles inside the block."""
    seen: list[str] = []

    def listen(event: str, duration_s: float, **kwargs: Any) -> None:
        if event.endswith("backend_compile_duration"):
            seen.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        yield seen
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
