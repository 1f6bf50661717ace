"""Registration of our functions with Numba."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from inspect import signature
from typing import Any, Final

import numba
from numba.core import types
from numba.core.errors import NumbaTypeError
from numba.core.typing.templates import infer_global
from numba.extending import models, overload, register_jitable, register_model

from c2c.compiling.addresses import Linked
from c2c.compiling.calls import call_at, call_linked
from c2c.compiling.compilers import INNER, OUTER
from c2c.compiling.decision import place_in_tables
from c2c.compiling.guard import Returns, is_outside, where_is
from c2c.compiling.packed_type import word_of
from c2c.errors import PolicyError

__all__ = [
    "BY_ADDRESS",
    "CALLED",
    "INLINED",
    "OPTIONS",
    "TELL",
    "guarded_compiled",
]

# No reference counting: the compiled loop allocates nothing. It is five times faster without.
OPTIONS: Final[dict[str, Any]] = {"_nrt": False, "no_cfunc_wrapper": True} | OUTER
# What compiled code calls at an address needs no entry from Python.
BY_ADDRESS: Final[dict[str, Any]] = OPTIONS | {"no_cpython_wrapper": True}
# Said outright, since Numba hands a caller's options down to what it calls.
CALLED: Final[Any] = BY_ADDRESS | {"forceinline": False} | INNER

# An array is seven numbers to a compiled call and the state has thirty: calls on the way of every
# event would spend their time on passing them.
INLINED: Final[Any] = CALLED | {"forceinline": True}
_USERS: Final[Any] = CALLED | {"_nrt": True, "boundscheck": True}

_LINKED: Final[Any] = numba.typeof(Linked(0))
_NAMED: Final[Any] = types.BaseNamedTuple  # to Numba: a NamedTuple of any types
_Dispatcher: Final[Any] = types.Dispatcher
_TOLD: Final[list[Any]] = []
_COMPILED: Final[dict[type, tuple[type, ...]]] = {
    bool: (types.Boolean,),
    int: (types.Integer,),
    float: (types.Float, types.Integer),
}


def overload_decision(
    point: Any,
    functions: Mapping[type, Callable[..., Any]],
    default: Callable[..., Any] | None,
    returns: Returns | None,
    unguarded: Callable[..., Any],
) -> None:
    """Register a decision for calls from compiled code."""

    def implementation(policy: Any) -> Callable[..., Any] | None:
        if not isinstance(policy, _NAMED) or policy.instance_class is Linked:
            return None
        return functions.get(policy.instance_class, default)

    @overload(point, jit_options=INLINED, strict=False)
    def _own(policy: Any, *args: Any) -> Callable[..., Any] | None:
        function = implementation(policy)
        return None if function is None or is_outside(function) else function

    # In the event loop, which knows no type of policy: the one in a table.
    @overload(point, jit_options=INLINED, strict=False)
    def _linked(policy: Any, *args: Any) -> Callable[..., Any] | None:
        if getattr(policy, "original", policy) != _LINKED:
            return None
        call = call_linked(point.__name__, point.signature, place_in_tables(point))
        if point.signature.own:
            return lambda policy, own, *args: call(policy.at, own, args)
        return lambda policy, *args: call(policy.at, 0, args)

    # From outside: it may allocate, and then brings its own counting of references.
    @overload(unguarded, jit_options=_USERS, strict=False)
    def _unguarded(policy: Any, *args: Any) -> Callable[..., Any] | None:
        return implementation(policy)

    @overload(point, jit_options=_USERS, strict=False)
    def _outside(policy: Any, *args: Any) -> Callable[..., Any] | None:
        function = implementation(policy)
        if function is None or not is_outside(function):
            return None
        if returns is None:
            return function
        who = policy.instance_class.__name__
        return guarded_compiled(point.__name__, who, function, returns, unguarded, _USERS)


def overload_function(function: Callable[..., Any], *, is_inlined: bool) -> None:
    """Register a function for compiled code."""
    # A dispatcher of its own, and not an overload, which would be compiled once more for every
    # constant that it is called with.
    options = INLINED if is_inlined else CALLED
    compiled = numba.njit(**(_USERS if is_outside(function) else options))(function)
    _TOLD.append(compiled)  # its type only refers to it weakly
    infer_global(function, _Compiled(compiled))


def overload_part(
    either: Callable[..., Any], function: Callable[..., Any], name: str, number: int
) -> None:
    """Register a part, called at its address in the rules."""
    call, address = call_at(function, name), word_of(number)
    names = list(signature(function).parameters)
    has_loop = "w" in names
    place = names.index("w" if has_loop else "rules")

    @overload(either, jit_options=INLINED, strict=False)
    def _compiled(*args: Any) -> Callable[..., Any]:
        if has_loop:
            return lambda *args: call(address(args[place].rules.apart), args)
        return lambda *args: call(address(args[place].apart), args)


class _Compiled(_Dispatcher):  # type: ignore[misc]
    def get_call_type(self, context: Any, args: Any, kws: Any) -> Any:
        plain = tuple(map(types.unliteral, args))
        named = {name: types.unliteral(kind) for name, kind in kws.items()}
        cache, key = self.__dict__.setdefault("_c2c_known", {}), (plain, *named.items())
        if key not in cache:  # Numba would make a class for each call
            cache[key] = super().get_call_type(context, plain, named)
        return cache[key]


register_model(_Compiled)(models.OpaqueModel)

# What `c2c.jit` tells Numba, by name.
TELL: Final[dict[str, Callable[..., Any]]] = {
    "decision": overload_decision,
    "formula": register_jitable,
    "function": overload_function,
    "part": overload_part,
}


def guarded_compiled(
    decision: str,
    policy: str,
    function: Callable[..., Any],
    returns: Returns,
    call: Callable[..., Any],
    options: Any,
) -> Callable[..., Any]:
    """Return a compiled implementation like `guard.guarded`."""
    subject = f"{where_is(function)}: {decision} returned"
    problem = f"{subject} something that is not {returns.allowed}"
    test = returns.test

    def typed(value: Any) -> Any:
        return value

    @overload(typed, jit_options=options, strict=False)
    def _typed(value: Any) -> Callable[..., Any]:
        kinds = _COMPILED.get(returns.kind)
        if kinds is None:
            fits = getattr(value, "instance_class", None) is returns.kind
        else:
            fits = isinstance(value, kinds)
        if not fits:
            raise NumbaTypeError(f"policy {policy}: {subject} {value}, not {returns.allowed}")
        return typed

    if test is None:

        def guard_type(policy_value: Any, *args: Any) -> Any:
            return typed(call(policy_value, *args))

        return guard_type

    def guard(policy_value: Any, *args: Any) -> Any:
        result = typed(call(policy_value, *args))
        if not test(result, *args):
            raise PolicyError(policy, problem)
        return result

    return guard
