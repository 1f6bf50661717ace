"""The machine code of single decisions, and the tables through which the event loop calls it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numba
import numba.extending
import numpy as np

from c2c.compiling.decision import INLINED, POINTS, DecisionPoint, place_in_tables
from c2c.compiling.guard import is_outside
from c2c.compiling.linked import FIELDS, Linked
from c2c.compiling.packed import as_array, read, words
from c2c.errors import PolicyError

__all__ = ["Nothing", "Tables", "decide_at", "link"]

# Numba has no types for most of what it offers.
types: Any = numba.types
intrinsic: Any = numba.extending.intrinsic
overload: Any = numba.extending.overload


def decide_at(point: Any, kind: Any, memory: Any, fields: int, own: int, arguments: Any) -> Any:
    """Decide as the policy says whose fields lie at an address; compiled for each policy.

    Args:
      point: the decision point, a type with its name.
      kind: type of the policy.
      memory: type of its own arrays.
      fields: address of the words of the policy's fields.
      own: address of the words of its arrays.
      arguments: of the decision.
    """
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
    """Return the result as the type that the event loop expects."""
    wanted = POINTS[point.name].signature.returns

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return context.cast(builder, arguments[1], signature.args[1], wanted)

    return wanted(point, value), generate


class Nothing(NamedTuple):
    """The memory of a policy that has none."""


class Tables(NamedTuple):
    """A system as compiled code takes it.

    Attributes:
      system: its policies, each as the address of its table.
      own: of each policy's own arrays, the address of their words.
      kept: what lies at the addresses: it must live as long as they are used.
    """

    system: Any
    own: Any
    kept: tuple[Any, ...]


def link(system: Any, own: Any, address_of: Callable[[bool, tuple[Any, ...]], int]) -> Tables:
    """Return the tables of a system's policies.

    Args:
      system: the policies, a `c2c.policies.System`.
      own: arrays of their own, a `c2c.policies.Own`.
      address_of: takes whether a policy is from outside the package and the types of `decide_at`'s
        arguments; returns where the machine code begins.

    Raises:
      PolicyError: a policy lacks an implementation, or has fields that are no numbers.
    """
    policies, memories = {}, {}
    kept: list[Any] = []
    for setting, policy in system._asdict().items():
        memory = getattr(own, setting, Nothing())
        fields, arrays = _words(policy, policy), _words(policy, memory)
        table = np.zeros(FIELDS + len(POINTS), np.int64)
        table[0] = fields.ctypes.data
        for point in _points_of(system.decision(setting)):
            _check(point, policy)
            table[FIELDS + place_in_tables(point)] = _address(point, policy, memory, address_of)
        policies[setting] = Linked(table.ctypes.data)
        memories[setting] = arrays.ctypes.data
        kept += [fields, arrays, table, memory]
    return Tables(
        type(system)(**policies), type(own)(*(memories[name] for name in own._fields)), tuple(kept)
    )


def _words(policy: Any, value: Any) -> np.ndarray:
    try:
        return as_array(words(value))
    except TypeError as error:
        raise PolicyError(type(policy).__name__, f"{value!r}: {error}") from None


def _points_of(first: DecisionPoint) -> list[DecisionPoint]:
    """Return the decisions that the package's own policies of a setting take, by the one of all."""
    ours = {p for p in first.policies.values() if not is_outside(p)}
    return [point for point in POINTS.values() if not ours.isdisjoint(point.policies.values())]


def _check(point: DecisionPoint, policy: Any) -> None:
    if not point.knows(type(policy)) and not point.has_default:
        raise PolicyError(type(policy).__name__, f"no implementation of {point.__name__!r} for it")


def _address(point: DecisionPoint, policy: Any, memory: Any, address_of: Callable[..., int]) -> int:
    if not point.knows(type(policy)):
        policy, memory = Nothing(), Nothing()  # one machine code for all that leave it so
    kinds = types.Opaque(point.__name__), _kind(policy), _kind(memory)
    takes = types.Tuple(point.signature.takes)
    return address_of(is_outside(type(policy)), (*kinds, types.int64, types.int64, takes))


def _kind(value: Any) -> Any:
    return types.TypeRef(numba.typeof(value))
