"""Policies as compiled code sees them: addresses of their decisions and of their fields.

The event loop is compiled once, for all systems: where it asks a policy it calls the function at an
address that stands in the policy's table. So another system costs the compilation of its policies
alone, which is tens of milliseconds each, and a policy that was compiled for one system serves any.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple, get_type_hints

import numba
import numba.extending
import numpy as np
from llvmlite import ir
from numba.core import cgutils
from numba.np.numpy_support import from_dtype

__all__ = ["FIELDS", "Linked", "Signature", "call_linked"]

# Numba has no types for most of what it offers.
types: Any = numba.types
intrinsic: Any = numba.extending.intrinsic

# Words of a policy's table before its functions: the address of its fields.
FIELDS: Final = 1
_SCALARS: Final[dict[Any, Any]] = {bool: types.boolean, int: types.int64, float: types.float64}


class Linked(NamedTuple):
    """Stands for a policy in compiled code.

    Attributes:
      at: address of its table.
    """

    at: int


class Signature(NamedTuple):
    """What a decision takes and returns in compiled code.

    Attributes:
      own: whether the policy's own arrays are passed.
      takes: types of the further arguments.
      returns: type of the result.
    """

    own: bool
    takes: tuple[Any, ...]
    returns: Any

    @classmethod
    def of(cls, protocol: Callable[..., Any], rows: np.dtype[Any] | None) -> Signature | None:
        """Return the signature that a decision's annotations name, None where they name none.

        Args:
          protocol: the function.
          rows: what an argument `table` has rows of, or `row` is one of.
        """
        hints = get_type_hints(protocol)
        returns = _type(hints.pop("return", Any))
        hints.pop("policy", None)
        own = hints.pop("own", None) is not None
        takes = []
        for name, hint in hints.items():
            if rows is not None and name in ("table", "row"):
                row = from_dtype(rows)
                takes.append(row if name == "row" else types.Array(row, 1, "C"))
            else:
                takes.append(_type(hint))
        if returns is None or None in takes:
            return None
        return cls(own, tuple(takes), returns)


def _type(hint: Any) -> Any:
    if hint in _SCALARS:
        return _SCALARS[hint]
    if not (isinstance(hint, type) and issubclass(hint, tuple) and hasattr(hint, "_fields")):
        return None
    kinds: list[Any] = [get_type_hints(hint).get(field) for field in hint._fields]
    return numba.typeof(hint(*(k() for k in kinds))) if set(kinds) <= set(_SCALARS) else None


def call_linked(name: str, signature: Signature, place: int) -> Callable[..., Any]:
    """Return a function for compiled code: `(at, own, arguments)` calls one decision of a table.

    Args:
      name: of the decision, for errors.
      signature: of the decision.
      place: of its function among the functions of a table.
    """
    takes, returns = types.Tuple(signature.takes), signature.returns
    # Three types come first: they choose the machine code, and are nothing in it.
    passed = (*3 * (types.Opaque("type"),), types.int64, types.int64, takes)

    def generate(context: Any, builder: Any, sig: Any, arguments: Any) -> Any:
        word = context.get_value_type(types.int64)
        at, own, given = arguments
        table = builder.inttoptr(at, word.as_pointer())

        def load(k: int) -> Any:
            return builder.load(builder.gep(table, [ir.Constant(ir.IntType(64), k)]))

        convention, address = context.call_conv, load(FIELDS + place)
        with cgutils.if_unlikely(builder, cgutils.is_null(builder, address)):
            said = f"the policy that was asked has no {name}"
            convention.return_user_exc(builder, RuntimeError, (said,))
        function = convention.get_function_type(returns, passed)
        callee = builder.inttoptr(address, function.as_pointer())
        nothing = [context.get_dummy_value()] * 3
        values = context.cast(builder, given, sig.args[2], takes)
        status, result = convention.call_function(
            builder, callee, returns, passed, [*nothing, load(0), own, values]
        )
        with cgutils.if_unlikely(builder, status.is_error):
            convention.return_status_propagate(builder, status)
        return result

    @intrinsic
    def call(typing: Any, at: Any, own: Any, arguments: Any) -> Any:
        return returns(types.int64, types.int64, arguments), generate

    found: Callable[..., Any] = call
    return found
