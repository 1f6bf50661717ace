"""Decision points, with an implementation per policy type."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, Protocol, cast
from typing import overload as overload_typing

import numpy as np

from c2c.compiling.addresses import Signature
from c2c.compiling.guard import Returns, check_signature, guarded, is_outside
from c2c.errors import PolicyError
from c2c.jit import when_compiling

__all__ = [
    "POINTS",
    "DecisionPoint",
    "decision",
    "implementations",
    "inlined",
    "jitable",
    "outside",
    "place_in_tables",
    "policies_in",
    "policy_name",
]

_IMPLEMENTATIONS: Final[dict[type, list[Callable[..., Any]]]] = {}
_LOOP: Final = "c2c.policies."

# Name -> decision point, of those that the event loop asks.
POINTS: Final[dict[str, Any]] = {}


# Interpreted, a decision point is a look-up by the type of its first argument. Compiled code that
# has the policy itself picks the implementation at compile time; the loop calls an address
# (`linked`).
class DecisionPoint(Protocol):
    """A decision point.

    Attributes:
      policies: types with an implementation, by name.
      signature: signature of compiled code; None: called only before the start.
    """

    __name__: str
    policies: dict[str, type]
    has_default: bool
    signature: Any

    def __call__(self, policy: Any, *args: Any) -> Any:
        """Call the implementation of `policy`, a NamedTuple."""
        ...

    def knows(self, policy_type: type) -> bool:
        """True if a policy type has its own implementation."""
        ...

    def by[F: Callable[..., Any]](self, policy_type: type) -> Callable[[F], F]:
        """Decorate the implementation for a policy type."""
        ...


def policy_name(policy_type: type) -> str:
    """Return the name of a policy in settings.

    >>> class LeastOutstanding: ...
    >>> policy_name(LeastOutstanding)
    'least_outstanding'
    """
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", policy_type.__name__).lower()


def implementations(policy_type: type) -> list[Callable[..., Any]]:
    """Return all implementations for a policy type."""
    return list(_IMPLEMENTATIONS.get(policy_type, ()))


def policies_in(values: Any) -> Iterator[Any]:
    """Yield all policies in nested tuples and policies."""
    if implementations(type(values)):
        yield values
    if isinstance(values, tuple):
        for value in values:
            yield from policies_in(value)


def outside(values: Any) -> list[Any]:
    """Return the policies from outside the package."""
    return [p for p in policies_in(values) if any(map(is_outside, implementations(type(p))))]


@overload_typing
def decision(protocol: Callable[..., Any]) -> DecisionPoint: ...
@overload_typing
def decision(
    *,
    default: Callable[..., Any] | None = None,
    returns: Returns | None = None,
    rows: np.dtype[Any] | None = None,
) -> Callable[[Callable[..., Any]], DecisionPoint]: ...
def decision(
    protocol: Callable[..., Any] | None = None,
    *,
    default: Callable[..., Any] | None = None,
    returns: Returns | None = None,
    rows: np.dtype[Any] | None = None,
) -> Any:
    """Make a decision point with a function's name and docstring.

    Args:
      default: for policies without their own; None: every policy needs one.
      returns: allowed results of outside policies, checked at each call.
      rows: dtype of the rows of an argument `table`, or of an argument `row`.
    """
    if protocol is None:
        return lambda point: _decision_point(point, default, returns, rows)
    return _decision_point(protocol, default, returns, rows)


def place_in_tables(point: DecisionPoint) -> int:
    """Return a decision's index in the tables, equal in every process."""
    return sorted(POINTS).index(point.__name__)


def _decision_point(
    protocol: Callable[..., Any],
    default: Callable[..., Any] | None,
    returns: Returns | None,
    rows: np.dtype[Any] | None,
) -> DecisionPoint:
    functions: dict[type, Callable[..., Any]] = {}
    called: dict[type, Callable[..., Any]] = {}  # the same, guarded where from outside

    def decide(policy: Any, *args: Any) -> Any:
        implementation = called.get(type(policy), default)
        if implementation is None:
            raise PolicyError(
                type(policy).__name__, f"no implementation of {protocol.__name__!r} for it"
            )
        return implementation(policy, *args)

    def by(policy_type: type) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        def keep(function: Callable[..., Any]) -> Callable[..., Any]:
            _check_new(policy_type, point.policies, function)
            check_signature(policy_type.__name__, protocol, function)
            functions[policy_type] = called[policy_type] = function
            if returns is not None and is_outside(function):
                called[policy_type] = guarded(name, policy_type.__name__, function, returns)
            point.policies[policy_name(policy_type)] = policy_type
            _IMPLEMENTATIONS.setdefault(policy_type, []).append(function)
            return function

        return keep

    name = protocol.__name__
    point: Any = decide
    point.by, point.policies, point.knows = by, {}, functions.__contains__
    point.__name__, point.__qualname__ = protocol.__name__, protocol.__qualname__
    point.__doc__, point.__module__ = protocol.__doc__, protocol.__module__
    point.has_default, point.signature = default is not None, Signature.of(protocol, rows)
    if point.signature is not None and point.__module__.startswith(_LOOP):
        POINTS[name] = point

    def unguarded(policy: Any, *args: Any) -> Any:
        return functions[type(policy)](policy, *args)

    when_compiling("decision", point, functions, default, returns, unguarded)
    return cast("DecisionPoint", point)


def _check_new(policy_type: Any, types: Mapping[str, type], function: Callable[..., Any]) -> None:
    if not (isinstance(policy_type, type) and hasattr(policy_type, "_fields")):
        raise PolicyError(
            getattr(policy_type, "__name__", str(policy_type)),
            "not a NamedTuple of its parameters",
        )
    if is_outside(function) and not is_outside(policy_type):
        raise PolicyError(
            policy_type.__name__, "a type of the package, which cannot change: define a new type"
        )
    before = types.get(policy_name(policy_type), policy_type)
    if before.__module__ != policy_type.__module__:
        raise PolicyError(policy_type.__name__, f"the name is already used in {before.__module__}")


def jitable[F: Callable[..., Any]](function: F) -> F:
    """Mark a function as callable from compiled code; a user's may allocate."""
    when_compiling("function", function, is_inlined=False)
    return function


def inlined[F: Callable[..., Any]](function: F) -> F:
    """Mark a function as `jitable` and inlined."""
    when_compiling("function", function, is_inlined=True)
    return function
