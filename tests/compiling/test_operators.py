"""Results of operators and of Python's own functions are found once, as Numba finds them."""

from __future__ import annotations

import operator
from typing import Any

import numba
import pytest
from numba.core.errors import TypingError
from numba.core.event import Listener, install_listener
from numba.core.registry import cpu_target

from c2c.compiling import operators
from c2c.policies.decision import OPTIONS  # puts ours in place

types: Any = numba.types
_Listener: Any = Listener

NUMBERS = (types.int64, types.int32, types.float64, types.boolean, types.literal(3))


def _call_type(function: Any, *args: Any) -> Any:
    context: Any = cpu_target.typing_context
    context.refresh()
    return context.resolve_value_type(function), context, args


@pytest.mark.parametrize(
    "function",
    [operator.add, operator.truediv, operator.floordiv, operator.lt, operator.eq, max, min],
)
def test_operators_on_numbers(function: Any) -> None:
    for a in NUMBERS:
        for b in NUMBERS:
            kind, context, args = _call_type(function, a, b)
            theirs = operators._FIND(kind, context, args, {})
            for _ in range(2):
                assert kind.get_call_type(context, args, {}) == theirs


def test_callers_compiled_with_other_flags_share_what_is_python_s_own() -> None:
    made: list[str] = []

    class Note(_Listener):  # type: ignore[misc]
        def on_start(self, event: Any) -> None:
            made.append(event.data["dispatcher"].py_func.__module__)

        def on_end(self, event: Any) -> None:
            pass

    def largest(x: int, y: float, z: int) -> float:
        return max(x, y, z, 0.5)

    with install_listener("numba:compile", Note()):
        for options in (OPTIONS, OPTIONS | {"error_model": "numpy"}):
            assert numba.njit(**options)(largest)(3, 4.5, 1) == 4.5
    assert sum(module == "numba.cpython.builtins" for module in made) == 1
    assert sum(module == __name__ for module in made) == 2


def test_what_numba_refuses_stays_refused() -> None:
    kind, context, args = _call_type(operator.add, types.int64, types.unicode_type)
    for _ in range(2):
        with pytest.raises(TypingError):
            kind.get_call_type(context, args, {})
