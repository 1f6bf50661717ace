"""Integer arithmetic on sizes and run-time scalars."""

from __future__ import annotations

from typing import Any

Int = Any  # int or a traced int32 scalar, never negative


def ceil_div(a: Int, b: Int) -> Int:
    """Return a / b rounded up.

    >>> ceil_div(65, 64)
    2
    """
    return div(a + b - 1, b)


def round_up(size: int, multiple: int) -> int:
    """Return the smallest multiple of `multiple` that is not below `size`.

    >>> round_up(65, 64)
    128
    """
    return -(-size // multiple) * multiple


def div(a: Int, b: Int) -> Int:
    """Return a // b."""
    return a // b if isinstance(a, int) and isinstance(b, int) else _lax().div(a, b)


def rem(a: Int, b: Int) -> Int:
    """Return a % b."""
    return a % b if isinstance(a, int) and isinstance(b, int) else _lax().rem(a, b)


def where(condition: Any, a: Int, b: Int) -> Int:
    """Return a where the condition holds, else b."""
    if isinstance(condition, bool):
        return a if condition else b
    if isinstance(a, int) and isinstance(b, int) and a == b:
        return a
    from jax import numpy

    return numpy.where(condition, a, b)


def dealt(items: Int, players: Int, player: Int) -> Int:
    """Return the number of `items` that the `player` gets in a round-robin deal.

    >>> [dealt(7, 3, player) for player in range(3)]
    [3, 2, 2]
    """
    return div(items - player + players - 1, players)


def _lax() -> Any:
    from jax import lax

    return lax
