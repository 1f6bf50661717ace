"""Deferred registration of functions with Numba."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any, Final

__all__ = ["begin", "formula", "when_compiling"]

# Importing Numba takes 0.3 CPU-seconds, registering our functions as much again; runs that are
# interpreted, or read their machine code from disk, need neither.
_WAITING: Final[list[tuple[str, tuple[Any, ...], dict[str, Any]]]] = []
_TELL: Final[dict[str, Callable[..., object]]] = {}
_LOCK: Final = threading.RLock()


def when_compiling(kind: str, *args: Any, **named: Any) -> None:
    """Register before Numba compiles, at once if it has."""
    with _LOCK:
        _WAITING.append((kind, args, named))
        if _TELL:
            begin(_TELL)


def begin(tell: Mapping[str, Callable[..., object]]) -> None:
    """Register all functions with Numba, by names."""
    with _LOCK:
        _TELL.update(tell)
        while _WAITING:
            event, arguments, named = _WAITING.pop(0)
            _TELL[event](*arguments, **named)


def formula[F: Callable[..., object]](function: F) -> F:
    """Inline a small function into compiled callers."""
    when_compiling("formula", function)
    return function
