"""Arithmetic instructions as functions over NumPy arrays, one value a lane."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import ml_dtypes
import numpy as np

__all__ = ["DTYPES", "OPERATIONS", "compare", "convert", "kind_of", "operate"]

Array = Any  # one value a lane, of one type
Operation = Callable[[tuple[str, ...], list[Array]], Array]  # (opcode and qualifiers, operands)

DTYPES: Final[Mapping[str, Any]] = {
    **{f"{sign}{8 * n}": np.dtype(f"{kind}{n}")
       for sign, kind in (("u", "u"), ("b", "u"), ("s", "i")) for n in (1, 2, 4, 8)},
    "f16": np.dtype(np.float16), "bf16": np.dtype(ml_dtypes.bfloat16),
    "f32": np.dtype(np.float32), "f64": np.dtype(np.float64), "pred": np.dtype(bool),
}  # fmt: skip
"""NumPy dtype of each PTX type."""

_ROUND: Mapping[str, Callable[[Array], Array]] = {
    "rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil,
}  # fmt: skip


def kind_of(parts: tuple[str, ...]) -> str:
    """Return the type of an instruction's operands: the last one in its opcode, else b32."""
    for part in reversed(parts):
        if part in DTYPES or part.removesuffix("x2") in ("f16", "bf16"):
            return part
    return "b32"


def compare(how: str, left: Array, right: Array) -> Array:
    """Return a comparison's results; those that end in `u` are also true if a side is NaN."""
    unordered = np.zeros(left.shape, bool)
    if left.dtype.kind not in "iub":
        unordered = np.isnan(left.astype(np.float64)) | np.isnan(right.astype(np.float64))
    name = how.removesuffix("u")
    made = {
        "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal,
        "gt": np.greater, "ge": np.greater_equal,
    }[name](left, right)  # fmt: skip
    return made | unordered if how.endswith("u") else made & ~unordered


def convert(parts: tuple[str, ...], to: str, value: Array) -> Array:
    """Return values converted to a type, with the opcode's rounding and saturation."""
    target = DTYPES[to]
    rounding = next((_ROUND[p] for p in parts if p in _ROUND), None)
    is_float = value.dtype.kind not in "iub"
    if is_float and rounding is not None:
        value = rounding(value.astype(np.float64)).astype(value.dtype)
    if not is_float or target.kind not in "iu":
        if "sat" in parts and not is_float:
            limits = np.iinfo(target)
            value = np.clip(value.astype(object), limits.min, limits.max)
        result = value.astype(target)
        if "sat" in parts and is_float:
            result = np.clip(np.nan_to_num(result, nan=0.0), 0, 1).astype(target)
        return result
    limits = np.iinfo(target)
    wide = np.nan_to_num(np.trunc(value.astype(np.float64)), nan=0.0)
    low, high = wide <= float(limits.min), wide >= float(limits.max)
    result = np.where(low | high, 0, wide).astype(target)
    return np.where(low, limits.min, np.where(high, limits.max, result)).astype(target)


def _wide(parts: tuple[str, ...], a: Array, b: Array) -> Array:
    double = f"{a.dtype.kind}{2 * a.dtype.itemsize}"
    if "wide" in parts:
        return a.astype(double) * b.astype(double)
    return a * b


def _mad(parts: tuple[str, ...], args: list[Array]) -> Array:
    product = _wide(parts, args[0], args[1])
    return product + args[2].astype(product.dtype)


def _fma(parts: tuple[str, ...], args: list[Array]) -> Array:
    a, b, c = (each.astype(np.float64) for each in args)
    return (a * b + c).astype(args[0].dtype)


def _shift(args: list[Array], *, left: bool) -> Array:
    a, by = args[0], args[1].astype(np.int64)
    bits = 8 * a.dtype.itemsize
    held = np.minimum(by, bits - 1).astype(a.dtype)
    moved = a << held if left else a >> held
    if not left and a.dtype.kind == "i":
        return moved
    return np.where(by >= bits, 0, moved).astype(a.dtype)


def _funnel(parts: tuple[str, ...], args: list[Array]) -> Array:
    low, high, by = (a.astype(np.uint64) for a in args)
    by = by & np.uint64(31) if "wrap" in parts else np.minimum(by, np.uint64(32))
    both = (high << np.uint64(32)) | low
    made = both << by >> np.uint64(32) if "l" in parts else both >> by
    return (made & np.uint64(0xFFFFFFFF)).astype(np.uint32)


def _field(args: list[Array]) -> Array:
    a, at, length = args[0], args[1].astype(np.int64) & 255, args[2].astype(np.int64) & 255
    bits = 8 * a.dtype.itemsize
    wide = a.astype(object)
    found = [
        _bits_of(int(x) % 2**bits, int(p), int(n), bits, a.dtype.kind == "i")
        for x, p, n in zip(wide, at, length, strict=True)
    ]
    return np.array(found, dtype=object).astype(a.dtype)


def _bits_of(value: int, at: int, length: int, bits: int, is_signed: bool) -> int:
    taken: int = (value >> at) & (2**length - 1)
    if is_signed and length and value >> min(at + length - 1, bits - 1) & 1:
        reach = min(length, max(bits - at, 0))
        taken = (taken & (2**reach - 1)) - 2**reach
    return taken


def _extreme(parts: tuple[str, ...], args: list[Array]) -> Array:
    a, b = args[:2]
    least = parts[0] == "min"
    if a.dtype.kind in "iu":
        return np.minimum(a, b) if least else np.maximum(a, b)
    if "NaN" in parts:
        return np.minimum(a, b) if least else np.maximum(a, b)
    return np.fmin(a, b) if least else np.fmax(a, b)


def _unary(function: Callable[[Array], Array]) -> Callable[[list[Array]], Array]:
    def apply(args: list[Array]) -> Array:
        return function(args[0].astype(np.float64)).astype(args[0].dtype)

    return apply


def _product(parts: tuple[str, ...], args: list[Array]) -> Array:
    return _wide(parts, args[0], args[1]) if args[0].dtype.kind in "iu" else args[0] * args[1]


def _product_sum(parts: tuple[str, ...], args: list[Array]) -> Array:
    return _mad(parts, args) if args[0].dtype.kind in "iu" else _fma(parts, args)


_PLAIN: Final[Mapping[str, Callable[[list[Array]], Array]]] = {
    "add": lambda a: a[0] + a[1],
    "sub": lambda a: a[0] - a[1],
    "div": lambda a: a[0] / a[1],
    "abs": lambda a: np.abs(a[0]),
    "neg": lambda a: (-a[0]).astype(a[0].dtype),
    "and": lambda a: a[0] & a[1],
    "or": lambda a: a[0] | a[1],
    "xor": lambda a: a[0] ^ a[1],
    "not": lambda a: ~a[0],
    "shl": lambda a: _shift(a, left=True),
    "shr": lambda a: _shift(a, left=False),
    "bfe": _field,
    "rcp": _unary(lambda x: 1.0 / x),
    "rsqrt": _unary(lambda x: 1.0 / np.sqrt(x)),
    "ex2": _unary(np.exp2),
}
_QUALIFIED: Final[Mapping[str, Operation]] = {
    "mul": _product, "mad": _product_sum, "fma": _fma, "min": _extreme, "max": _extreme,
    "shf": _funnel,
}  # fmt: skip
OPERATIONS: Final = frozenset({*_PLAIN, *_QUALIFIED})
"""Names of the instructions that `operate` knows."""


def operate(parts: tuple[str, ...], args: list[Array]) -> Array:
    """Return the result of an instruction in `OPERATIONS`.

    Args:
      parts: opcode and qualifiers.
      args: operands, of the instruction's types.
    """
    plain = _PLAIN.get(parts[0])
    return _QUALIFIED[parts[0]](parts, args) if plain is None else plain(args)
