"""Declarations of our functions to Numba, made only when something is first compiled.

Importing Numba takes 0.3 CPU-seconds and telling it of our functions as much again. Runs that read
their machine code from disk, and interpreted ones, need neither.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any, Final

__all__ = ["begin", "formula", "when_compiling"]

_WAITING: Final[list[tuple[str, tuple[Any, ...], dict[str, Any]]]] = []
_TELL: Final[dict[str, Callable[..., object]]] = {}
_LOCK: Final = threading.RLock()


def when_compiling(what: str, *given: Any, **named: Any) -> None:
    """Have Numba told of something before it compiles: at once if it has compiled already.

    Args:
      what: a name of `begin`, whose function takes the rest.
    """
    with _LOCK:
        _WAITING.append((what, given, named))
        if _TELL:
            begin(_TELL)


def begin(tell: Mapping[str, Callable[..., object]]) -> None:
    """Tell Numba what waits to be told, and from now on what comes.

    Args:
      tell: by name, what tells it.
    """
    with _LOCK:
        _TELL.update(tell)
        while _WAITING:
            what, given, named = _WAITING.pop(0)
            _TELL[what](*given, **named)


def formula[F: Callable[..., object]](function: F) -> F:
    """Let a small function become part of compiled code that calls it, whatever it is given."""
    when_compiling("formula", function)
    return function
