"""Tables of the machine code of decisions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from c2c.compiling.addresses import FIELDS, Linked
from c2c.compiling.decision import POINTS, DecisionPoint, place_in_tables
from c2c.compiling.guard import is_outside
from c2c.compiling.packing import as_array, words
from c2c.errors import PolicyError

__all__ = ["Nothing", "Tables", "link"]


class Nothing(NamedTuple):
    """Memory of a policy that has none."""


class Tables(NamedTuple):
    """A system for compiled code.

    Attributes:
      system: policies as addresses of tables.
      own: address of the policies' own arrays.
      kept: objects that must outlive these addresses.
    """

    system: Any
    own: Any
    kept: tuple[Any, ...]


def link(system: Any, own: Any, address_of: Callable[[DecisionPoint, Any, Any], int]) -> Tables:
    """Return the tables of a system's policies.

    Args:
      system: policies, a `c2c.policies.System`.
      own: their own arrays, a `c2c.policies.Own`.
      address_of: address of a decision's machine code, a policy and its own arrays.

    Raises:
      PolicyError: an implementation is missing, or a field is no number.
    """
    policies, memories = {}, {}
    storage: list[Any] = []
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
        storage += [fields, arrays, table, memory]
    return Tables(
        type(system)(**policies),
        type(own)(*(memories[name] for name in own._fields)),
        tuple(storage),
    )


def _words(policy: Any, value: Any) -> np.ndarray:
    try:
        return as_array(words(value))
    except TypeError as error:
        raise PolicyError(type(policy).__name__, f"{value!r}: {error}") from None


def _points_of(first: DecisionPoint) -> list[DecisionPoint]:
    ours = {p for p in first.policies.values() if not is_outside(p)}
    return [point for point in POINTS.values() if not ours.isdisjoint(point.policies.values())]


def _check(point: DecisionPoint, policy: Any) -> None:
    if not point.knows(type(policy)) and not point.has_default:
        raise PolicyError(type(policy).__name__, f"no implementation of {point.__name__!r} for it")


def _address(point: DecisionPoint, policy: Any, memory: Any, address_of: Callable[..., int]) -> int:
    if not point.knows(type(policy)):
        policy, memory = Nothing(), Nothing()  # one machine code for all that leave it so
    return address_of(point, policy, memory)
