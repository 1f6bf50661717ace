"""Calls of machine code at an address."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, get_args, get_type_hints

import numba
import numba.extending
import numpy as np
from llvmlite import ir
from numba.core import cgutils
from numba.np.numpy_support import from_dtype

from c2c.compiling.addresses import FIELDS, LOOP, Signature

__all__ = ["NUMBERS", "call_at", "call_linked", "call_words", "takes_of", "type_of"]

# Numba has no types for most of what it offers.
types: Any = numba.types
intrinsic: Any = numba.extending.intrinsic
_cgutils: Any = cgutils

NUMBERS: Final[dict[Any, Any]] = {bool: types.boolean, int: types.int64, float: types.float64}


def type_of(hint: Any) -> Any:
    """Return Numba's type of a number or a NamedTuple."""
    if hint in NUMBERS:
        return NUMBERS[hint]
    hints = get_type_hints(hint)
    return numba.typeof(hint(*(hints[field]() for field in hint._fields)))


def takes_of(signature: Signature, loop: Any = None) -> Any:
    """Return Numba's type of a decision's arguments."""
    kinds = []
    for k, kind in enumerate(signature.takes):
        if kind is LOOP:
            kinds.append(loop)
        elif isinstance(kind, np.dtype):
            row = from_dtype(kind)
            kinds.append(types.Array(row, 1, "C") if k in signature.tables else row)
        else:
            kinds.append(type_of(kind))
    return types.Tuple(kinds)


def _called(
    context: Any, builder: Any, address: Any, returns: Any, kinds: Any, values: Any, missing: str
) -> Any:
    convention = context.call_conv
    with _cgutils.if_unlikely(builder, _cgutils.is_null(builder, address)):
        convention.return_user_exc(builder, RuntimeError, (missing,))
    function = convention.get_function_type(returns, kinds).as_pointer()
    callee = builder.inttoptr(address, function)
    status, result = convention.call_function(builder, callee, returns, kinds, values)
    with _cgutils.if_unlikely(builder, status.is_error):
        convention.return_status_propagate(builder, status)
    return context.get_dummy_value() if returns is types.none else result


def call_linked(name: str, signature: Signature, place: int) -> Callable[..., Any]:
    """Return a function for compiled code that calls a table's decision."""
    returns = type_of(signature.returns)

    def generate(context: Any, builder: Any, sig: Any, arguments: Any) -> Any:
        pointer, memory, value = arguments
        came = zip(sig.args[2], signature.takes, strict=True)
        takes = takes_of(signature, next((kind for kind, take in came if take is LOOP), None))
        # Three types come first: they choose the machine code, and are nothing in it.
        passed = (*3 * (types.Opaque("type"),), types.int64, types.int64, takes)
        table = builder.inttoptr(pointer, context.get_value_type(types.int64).as_pointer())

        def load(k: int) -> Any:
            return builder.load(builder.gep(table, [ir.Constant(ir.IntType(64), k)]))

        address = load(FIELDS + place)
        nothing = [context.get_dummy_value()] * 3
        values = [*nothing, load(0), memory, context.cast(builder, value, sig.args[2], takes)]
        missing = f"the policy that was asked has no {name}"
        return _called(context, builder, address, returns, passed, values, missing)

    @intrinsic
    def call(typing: Any, address: Any, own: Any, arguments: Any) -> Any:
        return returns(types.int64, types.int64, arguments), generate

    result: Callable[..., Any] = call
    return result


def call_at(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    """Return a function for compiled code: `(address, arguments)`."""
    hints = get_type_hints(function)
    returns = _returned(hints.pop("return"))
    numbers = [NUMBERS.get(hint) for hint in hints.values()]

    def generate(context: Any, builder: Any, sig: Any, arguments: Any) -> Any:
        address, operands = arguments
        came = tuple(sig.args[1])
        kinds = tuple(number or kind for number, kind in zip(numbers, came, strict=True))
        values = [
            context.cast(builder, value, kind, takes)
            for value, kind, takes in zip(
                _cgutils.unpack_tuple(builder, operands), came, kinds, strict=True
            )
        ]
        missing = f"the part {name} of the event loop was not compiled"
        return _called(context, builder, address, returns, kinds, values, missing)

    @intrinsic
    def call(typing: Any, address: Any, arguments: Any) -> Any:
        return returns(types.int64, arguments), generate

    result: Callable[..., Any] = call
    return result


def call_words() -> Callable[[int, int], int]:
    """Return a function for compiled code that calls an entry."""

    def generate(context: Any, builder: Any, sig: Any, arguments: Any) -> Any:
        address, pointer = arguments
        kinds = (types.int64,)
        return _called(
            context, builder, address, types.int64, kinds, [pointer], "there is no entry"
        )

    @intrinsic
    def call(typing: Any, address: Any, words: Any) -> Any:
        return types.int64(types.int64, types.int64), generate

    result: Callable[[int, int], int] = call
    return result


def _returned(hint: Any) -> Any:
    if hint is type(None):
        return types.none
    return NUMBERS.get(hint) or types.Tuple([NUMBERS[part] for part in get_args(hint)])
