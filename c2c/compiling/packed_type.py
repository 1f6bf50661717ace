"""Numba's side of `packed`."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable
from typing import Any

import numba
import numba.extending
from llvmlite import ir
from numba.core.imputils import lower_getattr_generic
from numba.core.typing.templates import AttributeTemplate
from numba.np.numpy_support import as_dtype

from c2c.compiling.packing import Packed

__all__ = ["read", "read_words", "word_of"]

# Numba has no types for most of what it offers.
types: Any = numba.types
infer_getattr: Any = numba.extending.infer_getattr
intrinsic: Any = numba.extending.intrinsic
models: Any = numba.extending.models
register_model: Any = numba.extending.register_model
typeof_impl: Any = numba.extending.typeof_impl
unbox: Any = numba.extending.unbox


def _size(kind: Any) -> int:
    if isinstance(kind, types.BaseTuple):
        return sum(_size(part) for part in kind)
    return 1 + 2 * kind.ndim if isinstance(kind, types.Array) else 1


class _Reader:
    def __init__(self, context: Any, builder: Any, address: Any, first: int = 0) -> None:
        self._context, self._builder, self._next = context, builder, first
        self._pointer = builder.inttoptr(address, ir.IntType(64).as_pointer())

    def word(self) -> Any:
        pointer = self._builder.gep(self._pointer, [ir.Constant(ir.IntType(64), self._next)])
        self._next += 1
        loaded = self._builder.load(pointer)
        loaded.set_metadata("invariant.load", self._builder.module.add_metadata([]))
        return loaded

    def value(self, kind: Any) -> Any:
        context, builder = self._context, self._builder
        if isinstance(kind, types.BaseTuple):
            return context.make_tuple(builder, kind, [self.value(part) for part in kind])
        if isinstance(kind, PackedType):
            return self.word()
        if isinstance(kind, types.Array):
            return self._array(kind)
        if isinstance(kind, types.Float):
            double = builder.bitcast(self.word(), ir.DoubleType())
            return context.cast(builder, double, types.float64, kind)
        return context.cast(builder, self.word(), types.int64, kind)

    def _array(self, kind: Any) -> Any:
        # As one value: field by field in memory it is three times the code to write and optimise.
        context, builder = self._context, self._builder
        model, item = context.data_model_manager[kind], context.get_data_type(kind.dtype)
        data = builder.inttoptr(self.word(), item.as_pointer())
        shape = [self.word() for _ in range(kind.ndim)]
        size = shape[0].type(as_dtype(kind.dtype).itemsize)
        is_row = kind.ndim == 1 and kind.layout == "C"  # whose elements lie side by side
        strides = [size] if is_row else [self.word() for _ in range(kind.ndim)]
        self._next += is_row
        items = functools.reduce(lambda n, k: builder.mul(n, k, flags=["nsw"]), shape)
        result = ir.Constant(model.get_value_type(), None)  # nothing owns the memory
        for field, value in (
            ("nitems", items),
            ("itemsize", size),
            ("data", data),
        ):
            result = builder.insert_value(result, value, model.get_field_position(field))
        for field, values in (("shape", shape), ("strides", strides)):
            for k, value in enumerate(values):
                result = builder.insert_value(result, value, [model.get_field_position(field), k])
        return result


def read_words(context: Any, builder: Any, address: Any, kind: Any) -> Any:
    """Emit the read of a typed value at an address."""
    return _Reader(context, builder, address).value(kind)


@intrinsic
def read(typing: Any, kind: Any, address: Any) -> Any:
    """Return the value of type `kind` at an address."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return read_words(context, builder, arguments[1], signature.return_type)

    return kind.instance_type(kind, types.int64), generate


def word_of(number: int) -> Callable[[Any], int]:
    """Return a compiled read of the integer at an index."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return _Reader(context, builder, arguments[0], number).value(types.int64)

    @intrinsic
    def get(typing: Any, packed: Any) -> Any:
        return types.int64(packed), generate

    result: Callable[[Any], int] = get
    return result


class PackedType(types.Type):  # type: ignore[misc]
    """Numba's type of the result of `pack`."""

    def __init__(self, original: Any) -> None:
        # Numba builds every symbol of its arguments' names: spelt out, the state alone is 10 kB.
        self.original = original
        digest = hashlib.sha256(str(original).encode()).hexdigest()[:16]
        super().__init__(name=f"Packed_{original.instance_class.__name__}_{digest}")

    def first(self, field: str) -> int:
        """Return the index of a field's first word."""
        kinds = list(self.original)
        return sum(_size(kind) for kind in kinds[: self.original.fields.index(field)])

    def field(self, name: str) -> Any:
        """Return a field's type, or None."""
        if name not in self.original.fields:
            return None
        kind = list(self.original)[self.original.fields.index(name)]
        return PackedType(kind) if isinstance(kind, types.BaseNamedTuple) else kind


register_model(PackedType)(
    type(
        "PackedModel",
        (models.PrimitiveModel,),
        {
            "__init__": lambda self, dmm, kind: models.PrimitiveModel.__init__(
                self, dmm, kind, ir.IntType(64)
            )
        },
    )
)


@typeof_impl.register(Packed)
def _typeof(value: Packed, context: Any) -> Any:
    return PackedType(numba.typeof(value.value))


@unbox(PackedType)
def _unbox(kind: Any, value: Any, c: Any) -> Any:
    address = c.pyapi.object_getattr_string(value, "at")
    native = c.unbox(types.int64, address)
    c.pyapi.decref(address)
    return numba.extending.NativeValue(native.value, is_error=native.is_error)


_Attributes: Any = AttributeTemplate


@infer_getattr
class _Fields(_Attributes):  # type: ignore[misc]
    key = PackedType

    def generic_resolve(self, kind: Any, name: str) -> Any:
        return kind.field(name)


@lower_getattr_generic(PackedType)
def _field(context: Any, builder: Any, kind: Any, value: Any, name: str) -> Any:
    field, first = kind.field(name), kind.first(name)
    if isinstance(field, PackedType):
        return builder.add(value, ir.Constant(ir.IntType(64), 8 * first))
    return _Reader(context, builder, value, first).value(field)
