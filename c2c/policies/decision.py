"""Decision points: one name, an implementation for each type of policy.

A policy is a NamedTuple of its parameters. Interpreted, a decision point is a look-up by the type of
its first argument; compiled, Numba picks the implementation when it compiles, so a policy that is not
used costs nothing and a user's own policy needs no change of the package.
"""

from __future__ import annotations

import hashlib
import re
import types as pytypes
from collections.abc import Callable
from typing import Any, Final, Protocol, cast
from typing import overload as overload_typing

import numpy as np
from numba.core import types
from numba.extending import overload

from c2c.errors import PolicyError

__all__ = [
    "OPTIONS",
    "DecisionPoint",
    "decision",
    "fingerprint",
    "implementations",
    "jitable",
    "policy_name",
]

# No reference counting: the compiled loop allocates nothing. It is five times faster without.
OPTIONS: Final[dict[str, Any]] = {"_nrt": False}
# What is called from compiled code only needs no entry from C.
_INNER: Final[dict[str, Any]] = OPTIONS | {"no_cfunc_wrapper": True}

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
def decision(*, default: Callable[..., Any]) -> Callable[[Callable[..., Any]], DecisionPoint]: ...
def decision(
    protocol: Callable[..., Any] | None = None, *, default: Callable[..., Any] | None = None
) -> Any:
    """Make a decision point of a function whose name and docstring say what is decided.

    Args:
      protocol: the function.
      default: the implementation for policies that bring none of their own.
    """
    if protocol is None:
        return lambda found: _decision_point(found, default)
    return _decision_point(protocol, default)


def _decision_point(
    protocol: Callable[..., Any], default: Callable[..., Any] | None
) -> DecisionPoint:
    made: dict[type, Callable[..., Any]] = {}

    def decide(policy: Any, *args: Any) -> Any:
        implementation = made.get(type(policy), default)
        if implementation is None:
            raise PolicyError(
                type(policy).__name__, f"no implementation of {protocol.__name__!r} for it"
            )
        return implementation(policy, *args)

    def by(policy_type: type) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        def keep(function: Callable[..., Any]) -> Callable[..., Any]:
            made[policy_type] = function
            point.policies[policy_name(policy_type)] = policy_type
            _IMPLEMENTATIONS.setdefault(policy_type, []).append(function)
            return function

        return keep

    point: Any = decide
    point.by, point.policies = by, {}
    point.__name__, point.__qualname__ = protocol.__name__, protocol.__qualname__
    point.__doc__, point.__module__ = protocol.__doc__, protocol.__module__

    # A user's implementation may allocate; it then brings its own counting of references.
    @overload(decide, jit_options=_INNER | {"_nrt": True}, strict=False)
    def _compiled(policy: Any, *args: Any) -> Callable[..., Any] | None:
        if isinstance(policy, types.BaseNamedTuple):
            return made.get(policy.instance_class, default)
        return None

    return cast("DecisionPoint", point)


def _sees_policy(kind: Any) -> bool:
    if not isinstance(kind, types.BaseNamedTuple):
        return False
    return kind.instance_class in _IMPLEMENTATIONS or any(_sees_policy(k) for k in kind)


def jitable[F: Callable[..., Any]](function: F) -> F:
    """Let a function be called from compiled code; it stays an ordinary function elsewhere.

    What sees no policy is compiled once for all systems and kept on disk; what does is compiled
    with each system. A user's helpers may allocate.
    """
    if not function.__module__.startswith("c2c."):
        overload(function, jit_options=_INNER | {"_nrt": True}, strict=False)(
            lambda *args, **kwargs: function  # noqa: ARG005
        )
        return function

    @overload(function, jit_options=_INNER | {"cache": True}, strict=False)
    def _for_all(*args: Any, **kwargs: Any) -> F | None:  # noqa: ARG001
        return None if any(map(_sees_policy, args)) else function

    @overload(function, jit_options=_INNER, strict=False)
    def _for_one(*args: Any, **kwargs: Any) -> F | None:  # noqa: ARG001
        return function if any(map(_sees_policy, args)) else None

    return function


def fingerprint(function: Callable[..., Any]) -> bytes:
    """Return a digest of a function's code and of everything Numba would freeze into it."""
    return _fingerprint(function, set())


def _fingerprint(function: Any, seen: set[Any]) -> bytes:
    if function in seen:
        return b""
    seen.add(function)
    digest = hashlib.sha256()
    _digest_code(function.__code__, digest)
    closure = function.__closure__ or ()
    cells = [
        (f"<{name}>", cell.cell_contents)
        for name, cell in zip(function.__code__.co_freevars, closure, strict=True)
    ]
    scope = function.__globals__
    names = [n for n in sorted(set(function.__code__.co_names)) if n in scope]
    for name, found in cells + [(n, scope[n]) for n in names]:
        value = getattr(found, "py_func", found)
        if isinstance(value, pytypes.FunctionType):
            if not value.__module__.startswith(("c2c.", "numpy", "numba")):
                digest.update(name.encode() + _fingerprint(value, seen))
        elif isinstance(value, np.ndarray):
            digest.update(name.encode() + str(value.dtype).encode() + value.tobytes())
        elif isinstance(value, pytypes.ModuleType):
            file = getattr(value, "__file__", None) or ""
            library = value.__name__.split(".")[0] in ("c2c", "math", "numpy", "numba")
            if file and not library and "site-packages" not in file:
                with open(file, "rb") as source:  # noqa: PTH123 (a helper module of the user's)
                    digest.update(source.read())
        else:
            digest.update(f"{name}={value!r}".encode())
    return digest.digest()


def _digest_code(code: pytypes.CodeType, digest: Any) -> None:
    constants = [k for k in code.co_consts if not isinstance(k, pytypes.CodeType)]
    digest.update(code.co_code + repr((code.co_names, code.co_varnames, constants)).encode())
    for inner in code.co_consts:
        if isinstance(inner, pytypes.CodeType):
            _digest_code(inner, digest)
