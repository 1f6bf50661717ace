"""Policies for compiled code: addresses of decisions and fields."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple, get_type_hints

import numpy as np

__all__ = ["FIELDS", "LOOP", "Linked", "Signature"]

# Words of a policy's table before its functions: the address of its fields.
FIELDS: Final = 1
LOOP: Final = "loop"  # in `Signature.takes`: an argument `w`, the loop itself
_SCALARS: Final = (bool, int, float)


class Linked(NamedTuple):
    """Stand-in for a policy; its table is `at` an address."""

    at: int


class Signature(NamedTuple):
    """Arguments and result of a decision in compiled code.

    Attributes:
      own: whether own arrays are passed.
      takes: bool, int, float, a NamedTuple of them, a row's dtype, or LOOP.
      tables: indices of those that are whole tables of such rows.
    """

    own: bool
    takes: tuple[Any, ...]
    tables: frozenset[int]
    returns: Any

    @classmethod
    def of(cls, protocol: Callable[..., Any], rows: np.dtype[Any] | None) -> Signature | None:
        """Return the signature by annotations, or None."""
        hints = get_type_hints(protocol)
        returns = hints.pop("return", Any)
        hints.pop("policy", None)
        has_own = hints.pop("own", None) is not None
        has_rows = {name for name in ("table", "row") if rows is not None and name in hints}
        if not all(_is_plain(hint) for n, hint in hints.items() if n not in {*has_rows, "w"}):
            return None
        if not _is_plain(returns):
            return None
        takes = tuple(
            LOOP if name == "w" else rows if name in has_rows else hint
            for name, hint in hints.items()
        )
        tables = frozenset(k for k, n in enumerate(hints) if n in has_rows and n == "table")
        return cls(has_own, takes, tables, returns)


def _is_plain(hint: Any) -> bool:
    if hint in _SCALARS:
        return True
    if not (isinstance(hint, type) and issubclass(hint, tuple) and hasattr(hint, "_fields")):
        return False
    hints = get_type_hints(hint)
    return all(hints.get(field) in _SCALARS for field in hint._fields)
