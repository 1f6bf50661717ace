"""Compiled event loop of the simulator, see `c2c.compiling.machine_code`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from c2c.compiling.machine_code import compiled, is_kept
from c2c.simulator import core

__all__ = ["compiled_drive", "is_compiled"]


def is_compiled() -> bool:
    """Return whether machine code of the event loop is on disk."""
    return is_kept(core.drive)


def compiled_drive(arguments: tuple[Any, ...]) -> Callable[..., int]:
    """Return `core.drive` compiled, for the same rules."""
    return compiled(core.drive, arguments)
