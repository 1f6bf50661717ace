"""What an operator returns is found once, and is what Numba finds."""

from __future__ import annotations

import operator
from typing import Any

import numba
import pytest
from numba.core.errors import TypingError
from numba.core.registry import cpu_target

from c2c.policies import operators
from c2c.policies.linking import OuterCompiler  # puts ours in place

types: Any = numba.types

NUMBERS = (types.int64, types.int32, types.float64, types.boolean, types.literal(3))


def _call_type(function: Any, *args: Any) -> Any:
    context: Any = cpu_target.typing_context
    context.refresh()
    return context.resolve_value_type(function), context, args


@pytest.mark.parametrize(
    "function", [operator.add, operator.truediv, operator.floordiv, operator.lt, operator.eq]
)
def test_operators_on_numbers(function: Any) -> None:
    assert OuterCompiler
    for a in NUMBERS:
        for b in NUMBERS:
            kind, context, args = _call_type(function, a, b)
            theirs = operators._FIND(kind, context, args, {})
            for _ in range(2):
                assert kind.get_call_type(context, args, {}) == theirs


def test_what_numba_refuses_stays_refused() -> None:
    kind, context, args = _call_type(operator.add, types.int64, types.unicode_type)
    for _ in range(2):
        with pytest.raises(TypingError):
            kind.get_call_type(context, args, {})
