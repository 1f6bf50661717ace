"""Parts of the event loop that few systems need, as machine code of their own.

The event loop is compiled once, for all systems. What only some of them reach (caches of experts,
engines that take turns, starts that are graphs of works) is compiled when the first of them runs:
the loop calls it at an address among the rules, as it calls a policy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from inspect import signature
from typing import Any, Final, NamedTuple, get_args, get_type_hints

import numba
import numba.core.cgutils
import numba.extending

from c2c.compiling.decision import INLINED
from c2c.compiling.packed import word_of

__all__ = ["PARTS", "Apart", "Part", "apart"]

# Numba has no types for most of what it offers.
types: Any = numba.types
intrinsic: Any = numba.extending.intrinsic
cgutils: Any = numba.core.cgutils
overload: Any = numba.extending.overload


class Apart(NamedTuple):
    """Where the machine code of each part begins; 0: the system does not need it."""

    turns: int = 0
    deal: int = 0
    answer: int = 0
    choose_home: int = 0
    take_home: int = 0
    settle_memories: int = 0
    want_version: int = 0
    on_relaid: int = 0
    count_step: int = 0
    step_experts: int = 0
    start_experts: int = 0
    share_works: int = 0
    follow_works: int = 0
    begin_start: int = 0
    begin_steps: int = 0
    stop_works: int = 0
    end_works: int = 0
    begin_relayout: int = 0
    end_relayout: int = 0
    hand_on: int = 0
    carry: int = 0
    join_come: int = 0
    carried: int = 0
    shared_places: int = 0
    claim_prefix: int = 0
    note_computed: int = 0
    let_prefix_go: int = 0
    trim_prefixes: int = 0


class Part(NamedTuple):
    """A part of the loop.

    Attributes:
      function: what it does.
      is_needed: whether a run reaches it, by the values that the loop is called with.
    """

    function: Callable[..., Any]
    is_needed: Callable[[Mapping[type, Any]], bool]

    def takes(self) -> set[type]:
        """Return the types of the tuples among its arguments."""
        hints = get_type_hints(self.function)
        hints.pop("return", None)
        return set(hints.values()) - _NUMBERS.keys()

    def kinds(self, known: Mapping[type, Any]) -> tuple[Any, ...]:
        """Return Numba's types of the arguments, those of tuples by the tuples' types."""
        hints = get_type_hints(self.function)
        hints.pop("return", None)
        return tuple(_NUMBERS.get(hint) or known[hint] for hint in hints.values())


_NUMBERS: Final[dict[Any, Any]] = {
    bool: types.boolean, int: types.int64, float: types.float64,
}  # fmt: skip

# Name in `Apart` -> part.
PARTS: Final[dict[str, Part]] = {}


def apart(
    name: str, *, needed: Callable[[Mapping[type, Any]], bool]
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorate a function that compiled code calls at the address `rules.apart.<name>`.

    Its arguments are numbers and tuples of the event loop, `rules` among them.

    Args:
      name: of its field in `Apart`.
      needed: whether a run reaches it, by the values that the loop is called with, by type.
    """

    def keep(function: Callable[..., Any]) -> Callable[..., Any]:
        PARTS[name] = Part(function, needed)
        call, address = _call_at(function, name), word_of(Apart._fields.index(name))
        rules = list(signature(function).parameters).index("rules")

        def either(*args: Any) -> Any:
            return function(*args)

        @overload(either, jit_options=INLINED, strict=False)
        def _compiled(*args: Any) -> Callable[..., Any]:
            return lambda *args: call(address(args[rules].apart), args)

        either.__name__, either.__doc__ = function.__name__, function.__doc__
        return either

    return keep


def _returned(hint: Any) -> Any:
    if hint is type(None):
        return types.none
    return _NUMBERS.get(hint) or types.Tuple([_NUMBERS[part] for part in get_args(hint)])


def _call_at(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    """Return a function for compiled code: `(address, arguments)` calls what is there."""
    hints = get_type_hints(function)
    returns = _returned(hints.pop("return"))
    numbers = [_NUMBERS.get(hint) for hint in hints.values()]

    def generate(context: Any, builder: Any, sig: Any, arguments: Any) -> Any:
        address, given = arguments
        came, convention = tuple(sig.args[1]), context.call_conv
        kinds = tuple(number or kind for number, kind in zip(numbers, came, strict=True))
        with cgutils.if_unlikely(builder, cgutils.is_null(builder, address)):
            said = f"the part {name} of the event loop was not compiled"
            convention.return_user_exc(builder, RuntimeError, (said,))
        callee = builder.inttoptr(
            address, convention.get_function_type(returns, kinds).as_pointer()
        )
        values = [
            context.cast(builder, value, kind, wanted)
            for value, kind, wanted in zip(
                cgutils.unpack_tuple(builder, given), came, kinds, strict=True
            )
        ]
        status, result = convention.call_function(builder, callee, returns, kinds, values)
        with cgutils.if_unlikely(builder, status.is_error):
            convention.return_status_propagate(builder, status)
        return context.get_dummy_value() if returns is types.none else result

    @intrinsic
    def call(typing: Any, address: Any, arguments: Any) -> Any:
        return returns(types.int64, arguments), generate

    found: Callable[..., Any] = call
    return found
