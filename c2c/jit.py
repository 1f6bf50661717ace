"""Registration of functions with Numba, deferred until a function is first compiled."""

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


def when_compiling(what: str, *given: Any, **named: Any) -> None:
    """Register a function with Numba before it compiles: at once if it has compiled already."""
    with _LOCK:
        _WAITING.append((what, given, named))
        if _TELL:
            begin(_TELL)


def begin(tell: Mapping[str, Callable[..., object]]) -> None:
    """Register all deferred functions with Numba, and later ones at once.

    Args:
      tell: functions that register with Numba, by the name given to `when_compiling`.
    """
    with _LOCK:
        _TELL.update(tell)
        while _WAITING:
            event, arguments, named = _WAITING.pop(0)
            _TELL[event](*arguments, **named)


def formula[F: Callable[..., object]](function: F) -> F:
    """Inline a small function into compiled callers, whatever its argument types."""
    when_compiling("formula", function)
    return function
