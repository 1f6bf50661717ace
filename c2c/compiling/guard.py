"""Checks of outside policies' results; `overloads` compiles them."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from c2c.errors import PolicyError, located

__all__ = [
    "Returns",
    "check_signature",
    "fits",
    "guarded",
    "is_outside",
    "where_is",
]


class Returns(NamedTuple):
    """Allowed results of an implementation.

    Attributes:
      kind: int, float, bool, str or a NamedTuple.
      allowed: description for errors.
      test: predicate of the result and the arguments without the policy; also compiled.
    """

    kind: type
    allowed: str
    test: Callable[..., bool] | None = None


_PYTHON: Final[dict[type, tuple[type, ...]]] = {
    bool: (bool, np.bool_),
    int: (int, np.integer),
    float: (float, int, np.floating, np.integer),
}


def is_outside(function: Callable[..., Any]) -> bool:
    """True for an outside function or type."""
    return not function.__module__.startswith("c2c.")


def where_is(function: Callable[..., Any]) -> str:
    """Return a function's file and line.

    >>> where_is(where_is).startswith("guard.py, line ")
    True
    """
    code = function.__code__
    return f"{Path(code.co_filename).name}, line {code.co_firstlineno}"


def check_signature(name: str, protocol: Callable[..., Any], function: Callable[..., Any]) -> None:
    """Raise PolicyError if arguments differ from the decision's."""
    names = list(inspect.signature(protocol).parameters)
    parameters = inspect.signature(function).parameters.values()
    plain = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    if len(parameters) != len(names) or any(p.kind not in plain for p in parameters):
        raise PolicyError(
            name,
            f"{where_is(function)}: {protocol.__name__} is given ({', '.join(names)}), "
            f"this takes ({', '.join(map(str, parameters))})",
        )


def fits(value: Any, kind: type) -> bool:
    """True if a result's type is allowed."""
    if kind is int and isinstance(value, bool):
        return False
    return isinstance(value, _PYTHON.get(kind, (kind,)))


def guarded(
    decision: str, policy: str, function: Callable[..., Any], returns: Returns
) -> Callable[..., Any]:
    """Return an implementation that raises PolicyError for wrong results."""

    def guard(policy_value: Any, *args: Any) -> Any:
        try:
            result = function(policy_value, *args)
        except PolicyError:
            raise
        except Exception as error:
            raise PolicyError(policy, located(error, function)) from error
        if not fits(result, returns.kind) or not (
            returns.test is None or returns.test(result, *args)
        ):
            plain = result.item() if isinstance(result, np.generic) else result
            raise PolicyError(
                policy,
                f"{where_is(function)}: {decision} returned {plain!r}, not {returns.allowed}",
            )
        return result

    return guard
