"""Numba's typing of operators and of Python's own functions, each found once.

Numba tries every implementation that it has of `+` (of numbers, strings, arrays, ...) at each place
where two numbers are added. What an operator returns follows from the types of its arguments alone,
so the first answer is kept. A twelfth of the compile time goes. So it is with `max`, which Numba
would also make machine code of once more for callers that are compiled with other flags.
"""

from __future__ import annotations

from typing import Any, Final

from numba.core.types import BaseFunction

__all__ = ["install"]

_Function: Final[Any] = BaseFunction  # Numba brings no types for it
_FIND: Final[Any] = _Function.get_call_type
_PYTHON_S_OWN: Final = {"_operator", "builtins"}


def _get_call_type(self: Any, context: Any, args: Any, kws: Any) -> Any:
    if kws or getattr(self.typing_key, "__module__", None) not in _PYTHON_S_OWN:
        return _FIND(self, context, args, kws)
    known = self.__dict__.setdefault("_c2c_known", {})
    found = known.get(args)
    if found is None:
        found = known[args] = _FIND(self, context, args, kws)
    return found


def install() -> None:
    """Put it in place of Numba's own; it answers as before."""
    _Function.get_call_type = _get_call_type
