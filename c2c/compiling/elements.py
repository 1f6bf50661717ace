"""Elements of arrays in the package's functions, without the array being put into memory first.

For each element Numba writes a whole array to the stack and reads parts of it back, most of them
twice: thirty instructions where seven do. A third of all that LLVM reads was that.
"""

from __future__ import annotations

import operator
from typing import Any, Final

import numba
from numba.core.cgutils import unpack_tuple
from numba.core.imputils import lower_builtin
from numba.np import arrayobj

from c2c.compiling.ours import SYMBOLS

__all__ = ["install"]

# Numba has no types for most of what it offers.
types: Any = numba.types
_lower: Final[Any] = lower_builtin
_arrays: Final[Any] = arrayobj
_unpacked: Final[Any] = unpack_tuple
_NUMBERS: Final[Any] = (types.Number, types.Boolean)


def _is_plain(context: Any, builder: Any, array: Any, indices: Any) -> bool:
    """Return whether it is one element of a contiguous array, and nobody asks for its bounds."""
    return (
        builder.function.name.startswith(SYMBOLS)
        and not context.enable_boundscheck
        and array.layout == "C"
        and array.ndim == len(indices)
        and all(isinstance(kind, types.Integer) for kind in indices)
    )


def _place(context: Any, builder: Any, array: Any, value: Any, kinds: Any, indices: Any) -> Any:
    """Return the address of an element; a negative index counts from the end."""
    model = context.data_model_manager[array]
    shape, data = model.get_field_position("shape"), model.get_field_position("data")
    at = None
    for k, (kind, index) in enumerate(zip(kinds, indices, strict=True)):
        size = builder.extract_value(value, [shape, k])
        here = context.cast(builder, index, kind, types.intp)
        known = getattr(here, "constant", None)
        if kind.signed and not (isinstance(known, int) and known >= 0):
            is_negative = builder.icmp_signed("<", here, here.type(0))
            here = builder.select(is_negative, builder.add(here, size), here)
        at = here if at is None else builder.add(builder.mul(at, size), here)
    return builder.gep(builder.extract_value(value, data), [at])


def _get(context: Any, builder: Any, sig: Any, args: Any, kinds: Any, indices: Any) -> Any:
    place = _place(context, builder, sig.args[0], args[0], kinds, indices)
    return _arrays.load_item(context, builder, sig.args[0], place)


def _get_one(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    array, kind = sig.args
    if not _is_plain(context, builder, array, (kind,)):
        return _arrays.getitem_arraynd_intp(context, builder, sig, args)
    return _get(context, builder, sig, args, (kind,), (args[1],))


def _get_of_many(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    array, kinds = sig.args
    if not _is_plain(context, builder, array, tuple(kinds)):
        return _arrays.getitem_array_tuple(context, builder, sig, args)
    indices = _unpacked(builder, args[1], len(kinds))
    return _get(context, builder, sig, args, tuple(kinds), indices)


def _set(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    array, kind, given = sig.args
    many = isinstance(kind, types.BaseTuple)
    kinds = tuple(kind) if many else (kind,)
    is_number = isinstance(array.dtype, _NUMBERS) and isinstance(given, _NUMBERS)
    if not is_number or not _is_plain(context, builder, array, kinds):
        return _arrays.setitem_array(context, builder, sig, args)
    indices = _unpacked(builder, args[1], len(kinds)) if many else (args[1],)
    place = _place(context, builder, array, args[0], kinds, indices)
    value = context.cast(builder, args[2], given, array.dtype)
    _arrays.store_item(context, builder, array, value, place)
    return context.get_dummy_value()


def _length(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    if not builder.function.name.startswith(SYMBOLS):
        return _arrays.array_len(context, builder, sig, args)
    model = context.data_model_manager[sig.args[0]]
    return builder.extract_value(args[0], [model.get_field_position("shape"), 0])


def install() -> None:
    """Offer them to Numba; for functions of others they answer as Numba's own."""
    _lower(operator.getitem, types.Array, types.Integer)(_get_one)
    _lower(operator.getitem, types.Array, types.BaseTuple)(_get_of_many)
    _lower(operator.setitem, types.Array, types.Any, types.Any)(_set)
    _lower(len, types.Array)(_length)
