"""Decision points: one name, an implementation for each type of policy.

A policy is a NamedTuple of its parameters. Interpreted, a decision point is a look-up by the type
of its first argument; compiled, Numba picks the implementation when it compiles, so a policy that
is not used costs nothing and a user's own policy needs no change of the package.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol, cast
from typing import overload as overload_typing

from numba.core import types
from numba.extending import overload

from c2c.errors import PolicyError
from c2c.policies.guard import (
    Returns,
    check_signature,
    guarded,
    guarded_compiled,
    is_outside,
)
from c2c.policies.linking import InnerCompiler, OuterCompiler

__all__ = [
    "OPTIONS",
    "DecisionPoint",
    "decision",
    "implementations",
    "inlined",
    "jitable",
    "policy_name",
]

# No reference counting: the compiled loop allocates nothing. It is five times faster without.
OPTIONS: Final[dict[str, Any]] = {"_nrt": False, "pipeline_class": OuterCompiler}
# What is called from compiled code only needs no entry from C.
# Said outright, since Numba hands a caller's options down to what it calls.
_INNER: Final[Any] = OPTIONS | {
    "no_cfunc_wrapper": True,
    "pipeline_class": InnerCompiler,
    "forceinline": False,
}

# An array is seven numbers to a compiled call and the state has thirty: calls on the way of every
# event would spend their time on passing them.
_INLINED: Final[Any] = _INNER | {"forceinline": True}
_USERS: Final[Any] = _INNER | {"_nrt": True, "boundscheck": True}

_NAMED: Final[Any] = types.BaseNamedTuple  # to Numba: a NamedTuple of any types
_IMPLEMENTATIONS: Final[dict[type, list[Callable[..., Any]]]] = {}


class DecisionPoint(Protocol):
    """What `decision` returns.

    Attributes:
      policies: the types that have an implementation, by name.
    """

    __name__: str
    policies: dict[str, type]

    def __call__(self, policy: Any, *args: Any) -> Any:
        """Decide as `policy`, a NamedTuple, says."""
        ...

    def knows(self, policy_type: type) -> bool:
        """Return whether there is an implementation of its own for a type of policy."""
        ...

    def by[F: Callable[..., Any]](self, policy_type: type) -> Callable[[F], F]:
        """Decorate the implementation for a type of policy."""
        ...


def policy_name(policy_type: type) -> str:
    """Return the name of a policy in settings.

    >>> class LeastOutstanding: ...
    >>> policy_name(LeastOutstanding)
    'least_outstanding'
    """
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", policy_type.__name__).lower()


def implementations(policy_type: type) -> list[Callable[..., Any]]:
    """Return every implementation that is given for a type of policy; empty if it is none."""
    return list(_IMPLEMENTATIONS.get(policy_type, ()))


@overload_typing
def decision(protocol: Callable[..., Any]) -> DecisionPoint: ...
@overload_typing
def decision(
    *, default: Callable[..., Any] | None = None, returns: Returns | None = None
) -> Callable[[Callable[..., Any]], DecisionPoint]: ...
def decision(
    protocol: Callable[..., Any] | None = None,
    *,
    default: Callable[..., Any] | None = None,
    returns: Returns | None = None,
) -> Any:
    """Make a decision point of a function whose name and docstring say what is decided.

    Args:
      protocol: the function.
      default: the implementation for policies that bring none of their own.
      returns: what policies from outside the package are held to, at each call.
    """
    if protocol is None:
        return lambda found: _decision_point(found, default, returns)
    return _decision_point(protocol, default, returns)


def _decision_point(
    protocol: Callable[..., Any],
    default: Callable[..., Any] | None,
    returns: Returns | None,
) -> DecisionPoint:
    made: dict[type, Callable[..., Any]] = {}
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
            made[policy_type] = called[policy_type] = function
            if returns is not None and is_outside(function):
                called[policy_type] = guarded(name, policy_type.__name__, function, returns)
            point.policies[policy_name(policy_type)] = policy_type
            _IMPLEMENTATIONS.setdefault(policy_type, []).append(function)
            return function

        return keep

    name = protocol.__name__
    point: Any = decide
    point.by, point.policies, point.knows = by, {}, made.__contains__
    point.__name__, point.__qualname__ = protocol.__name__, protocol.__qualname__
    point.__doc__, point.__module__ = protocol.__doc__, protocol.__module__

    def unguarded(policy: Any, *args: Any) -> Any:
        return made[type(policy)](policy, *args)

    def implementation(policy: Any) -> Callable[..., Any] | None:
        return made.get(policy.instance_class, default) if isinstance(policy, _NAMED) else None

    @overload(decide, jit_options=_INLINED, strict=False)
    def _own(policy: Any, *args: Any) -> Callable[..., Any] | None:
        function = implementation(policy)
        return None if function is None or is_outside(function) else function

    # From outside: it may allocate, and then brings its own counting of references.
    @overload(unguarded, jit_options=_USERS, strict=False)
    def _unguarded(policy: Any, *args: Any) -> Callable[..., Any] | None:
        return implementation(policy)

    @overload(decide, jit_options=_USERS, strict=False)
    def _outside(policy: Any, *args: Any) -> Callable[..., Any] | None:
        function = implementation(policy)
        if function is None or not is_outside(function):
            return None
        if returns is None:
            return function
        who = policy.instance_class.__name__
        return guarded_compiled(name, who, function, returns, unguarded, _USERS)

    return cast("DecisionPoint", point)


def _check_new(policy_type: Any, known: Mapping[str, type], function: Callable[..., Any]) -> None:
    """Raise PolicyError for what is no policy, or has the name of another one."""
    if not (isinstance(policy_type, type) and hasattr(policy_type, "_fields")):
        raise PolicyError(
            getattr(policy_type, "__name__", str(policy_type)),
            "it is no NamedTuple, which is what holds a policy's parameters",
        )
    if is_outside(function) and not is_outside(policy_type):
        raise PolicyError(
            policy_type.__name__, "it is the package's own and stays as it is: make another type"
        )
    before = known.get(policy_name(policy_type), policy_type)
    if before.__module__ != policy_type.__module__:
        raise PolicyError(
            policy_type.__name__, f"there is one of this name already, in {before.__module__}"
        )


def _sees_policy(kind: Any) -> bool:
    if not isinstance(kind, _NAMED):
        return False
    return kind.instance_class in _IMPLEMENTATIONS or any(_sees_policy(k) for k in kind)


def jitable[F: Callable[..., Any]](function: F) -> F:
    """Let a function be called from compiled code; it stays an ordinary function elsewhere.

    What sees no policy is compiled once for all systems and kept on disk; what does is compiled
    with each system. A user's helpers may allocate.
    """
    return _jitable(function, _INNER)


def inlined[F: Callable[..., Any]](function: F) -> F:
    """Do the same for a function on the way of every event: it becomes part of its caller."""
    return _jitable(function, _INLINED)


def _jitable[F: Callable[..., Any]](function: F, options: Any) -> F:
    if not function.__module__.startswith("c2c."):
        overload(function, jit_options=_USERS, strict=False)(
            lambda *args, **kwargs: function  # noqa: ARG005
        )
        return function

    @overload(function, jit_options=options | {"cache": True}, strict=False)
    def _for_all(*args: Any, **kwargs: Any) -> F | None:
        return None if any(map(_sees_policy, args)) else function

    @overload(function, jit_options=options, strict=False)
    def _for_one(*args: Any, **kwargs: Any) -> F | None:
        return function if any(map(_sees_policy, args)) else None

    return function
