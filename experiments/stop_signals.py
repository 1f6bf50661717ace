"""Signals that stop a run."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

__all__ = ["heeded_signals", "told_to_stop"]

_told: list[int] = []


@contextmanager
def heeded_signals(*, once: bool = False) -> Iterator[None]:
    """Let SIGTERM end a run as Ctrl-C does."""

    def stop(signum: int, frame: FrameType | None) -> None:  # noqa: ARG001 (signal's protocol)
        if _told and once:
            return
        _told.append(signum)
        raise KeyboardInterrupt

    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def told_to_stop() -> bool:
    """Return whether a signal came, also a swallowed one."""
    return bool(_told)
