"""Counter-based draws, by purpose instead of order."""

from __future__ import annotations

from typing import Final

from c2c.jit import formula

__all__ = ["DRAWS", "draw", "hashed", "request_key"]

DRAWS: Final = 1 << 32  # numbers that a draw may be

_MASK: Final = 0xFFFFFFFF
_STEP: Final = 0x1E3779B9


@formula
def _mixed(x: int) -> int:
    # Multipliers below 2**31 keep products of 32-bit numbers within 63 bits: the interpreter's
    # integers and the machine's agree.
    x = ((x ^ (x >> 16)) * 0x7FEB352D) & _MASK
    x = ((x ^ (x >> 15)) * 0x31848BAB) & _MASK
    return x ^ (x >> 16)


@formula
def hashed(key: int, number: int) -> int:
    """Return a 32-bit hash of two numbers."""
    return _mixed(((key ^ (number & _MASK)) + _STEP) & _MASK)


@formula
def request_key(seed: int, request: int) -> int:
    """Return the hash that a request's draws start from."""
    return hashed(hashed(0, seed), request)


@formula
def draw(seed: int, request: int, position: int, layer: int, k: int) -> float:
    """Return a number in [0, 1) that only the arguments determine.

    Args:
      layer: or another number for the purpose.
      k: index of several draws.
    """
    return hashed(hashed(hashed(request_key(seed, request), position), layer), k) / DRAWS
