"""Compilation by Numba; a heavy import."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Final

import numba
import numba.extending
from llvmlite import binding
from numba.core.runtime.nrt import rtsys

from c2c.compiling.addresses import LOOP
from c2c.compiling.calls import NUMBERS, call_words, takes_of, type_of
from c2c.compiling.decision import POINTS, DecisionPoint
from c2c.compiling.kept import Made
from c2c.compiling.overloads import BY_ADDRESS, CALLED, INLINED, OPTIONS, TELL
from c2c.compiling.packed_type import read, read_words
from c2c.compiling.packing import pack
from c2c.jit import begin

__all__ = ["OPTIONS", "decide_at", "decision", "decision_kinds", "entry", "part", "raising"]

# Numba has no types for most of what it offers.
types: Any = numba.types
intrinsic: Any = numba.extending.intrinsic
overload: Any = numba.extending.overload

_HELD: Final[list[Any]] = []  # they hold machine code in memory

begin(TELL)


def decide_at(point: Any, kind: Any, memory: Any, fields: int, own: int, arguments: Any) -> Any:
    """Decide by the policy at an address."""
    return _returned(point, _decided(point, read(kind, fields), read(memory, own), arguments))


def _decided(point: Any, policy: Any, own: Any, arguments: Any) -> Any:
    decide = POINTS[point.name]
    return decide(policy, *((own,) if decide.signature.own else ()), *arguments)


@overload(_decided, jit_options=INLINED, strict=False)
def _decided_compiled(point: Any, policy: Any, own: Any, arguments: Any) -> Callable[..., Any]:
    decide = POINTS[point.name]

    def with_own(point: Any, policy: Any, own: Any, arguments: Any) -> Any:
        return decide(policy, own, *arguments)

    def without(point: Any, policy: Any, own: Any, arguments: Any) -> Any:
        return decide(policy, *arguments)

    return with_own if decide.signature.own else without


@intrinsic
def _returned(typing: Any, point: Any, value: Any) -> Any:
    kind = type_of(POINTS[point.name].signature.returns)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return context.cast(builder, arguments[1], signature.args[1], kind)

    return kind(point, value), generate


@functools.cache
def _decisions() -> Any:
    return numba.njit(**BY_ADDRESS)(decide_at)


def decision(point: DecisionPoint, policy: Any, memory: Any, loop: Any = None) -> Made:
    """Compile a policy type's decision, a call of `decide_at`."""
    return _made(_decisions(), decision_kinds(point, policy, memory, loop))


def decision_kinds(
    point: DecisionPoint, policy: Any, memory: Any, loop: Any = None
) -> tuple[Any, ...]:
    """Return Numba's types of the arguments of `decide_at`."""
    kinds = [types.TypeRef(numba.typeof(value)) for value in (policy, memory)]
    takes = takes_of(point.signature, _kind_of(loop) if LOOP in point.signature.takes else None)
    return types.Opaque(point.__name__), *kinds, types.int64, types.int64, takes


def part(function: Callable[..., Any], takes: list[Any]) -> Made:
    """Compile a part of the loop."""
    kinds = tuple(NUMBERS.get(type(value)) or _kind_of(value) for value in takes)
    return _made(numba.njit(**BY_ADDRESS)(function), kinds)


def entry(function: Callable[..., int], takes: list[Any]) -> Made:
    """Compile an entry that takes its words' address."""
    kinds = types.Tuple([_kind_of(value) for value in takes])
    compiled = numba.njit(**CALLED)(function)

    @intrinsic
    def arguments(typing: Any, address: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            return read_words(context, builder, args[0], kinds)

        return kinds(types.int64), generate

    def at_address(address: int) -> int:
        return int(compiled(*arguments(address)))

    at_address.__name__ = at_address.__qualname__ = function.__name__
    return _made(numba.njit(**BY_ADDRESS)(at_address), (types.int64,))


@functools.cache
def raising() -> Callable[[int, int], int]:
    """Return a call that raises policies' errors."""
    call = call_words()

    def run(address: int, words: int) -> int:
        return call(address, words)

    result: Callable[[int, int], int] = numba.njit([(types.int64, types.int64)], **OPTIONS)(run)
    # Machine code of users' policies counts references, which are functions in Numba's own memory.
    for name in ("NRT_incref", "NRT_decref"):
        binding.add_symbol(name, rtsys.library.get_pointer_to_function(name))
    return result


def _kind_of(value: Any) -> Any:
    return numba.typeof(pack(value) if hasattr(value, "_fields") else value)


def _made(dispatcher: Any, kinds: tuple[Any, ...]) -> Made:
    dispatcher.compile(kinds)
    variant = dispatcher.overloads[kinds]
    _HELD.append(variant.library)
    symbol = variant.fndesc.llvm_func_name
    _, _, (content, _) = variant.library.serialize_using_object_code()
    return Made(int(variant.library.get_pointer_to_function(symbol)), symbol, content)
