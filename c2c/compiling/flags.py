"""Numba's comparison of compiler flags, without its cost.

While Numba types a call it looks the callee up under the flags in force, hundreds of thousands of
times for the event loop. Its own hash sorts the *names* of all flags, so it is one number for all
flags of a class, found anew each time through a property a flag; here it is found once. Equal
settings are equal without a look at what is not set. A tenth of the compile time goes.
"""

# ruff: noqa: SLF001

from __future__ import annotations

from typing import Any, Final

from numba.core.targetconfig import TargetConfig

__all__ = ["install"]

_Config: Final[Any] = TargetConfig  # Numba brings no types for it
_EQUAL: Final[Any] = _Config.__eq__


_HASHES: Final[dict[Any, int]] = {}  # by the class of flags


def _hash(self: Any) -> int:
    kind: Any = type(self)
    found = _HASHES.get(kind)
    if found is None:
        found = _HASHES[kind] = hash(tuple(sorted(kind.options)))
    return found


def _equal(self: Any, other: Any) -> Any:
    if type(self) is not type(other):
        return _EQUAL(self, other)
    ours, theirs, options = self._values, other._values, self.options
    return ours == theirs or all(
        ours.get(name, options[name].default) == theirs.get(name, options[name].default)
        for name in ours.keys() | theirs.keys()
    )


def install() -> None:
    """Put both in place of Numba's own; flags hash and compare as before."""
    _Config.__hash__ = _hash
    _Config.__eq__ = _equal
