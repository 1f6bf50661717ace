"""Writing of quantised weights by rows of W[N, K], from floats or from integers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import ml_dtypes
import numpy as np

from pallas_kernels.gemm.layout import pack_int4
from pallas_kernels.gemm.specs import Kind, storage_dtype
from pallas_kernels.host_memory import HostArray
from pallas_kernels.quantized_gemm.weights import (
    QuantizedWeights,
    check_weights,
    empty_weights,
    matrix_of,
    padded_k,
)

LARGEST = {"int8": 127.0, "int4": 7.0, "float8_e4m3fn": 448.0}
"""The largest stored magnitude of a float: -128 and -8 are left out, for symmetry."""

ROUNDED_SCALE_DTYPES = ("float32", "bfloat16")
"""Types of scales of floats; float16 has too small a range and serves scales that are float16."""

FLOATS = ("bfloat16", "float16", "float32", "float64")
_CHUNK_BYTES = 64 << 20  # of temporary arrays at a time
_SMALLEST_SCALE = float(np.finfo(np.float32).tiny)  # GPUs may flush smaller numbers to zero


# A loader allocates the arrays of a whole model (`weights.storage_shapes`) and writes each tensor
# into them as it reads it, without a second copy.
def quantize_rows(into: QuantizedWeights, first: int, w: Any, *, where: str = "") -> None:
    """Quantise rows of floats, symmetric and to the nearest, and write them to `into`.

    Padding is written (along N with row N - 1), offsets become zero.

    Args:
      first: index of the first row in `into`.
      w: bf16, f16, f32 or f64, [rows, K].

    Raises:
      ValueError: an argument outside its range, or an infinite weight or NaN.
    """
    w = concrete("w", w)
    if str(w.dtype) not in FLOATS:
        raise ValueError(f"w of dtype {w.dtype}: expected one of {', '.join(FLOATS)}")
    rows = _place(into, first, "w", w)
    if str(into.scales.dtype) not in ROUNDED_SCALE_DTYPES:
        expected = " or ".join(ROUNDED_SCALE_DTYPES)
        raise ValueError(f"into.scales of dtype {into.scales.dtype}: expected {expected}")
    wide, groups = padded_k(into.k, into.group), into.scales.shape[0]
    for part in _chunks(len(w), 16 * wide):  # values, ratios and their masks
        values = np.zeros((part.stop - part.start, wide), np.float32)
        with np.errstate(over="ignore"):  # found below
            values[:, : into.k] = w[part]
        stored, scales = _quantized(
            values.reshape(-1, groups, wide // groups), into.kind, into.scales.dtype
        )
        if not np.isfinite(scales).all():
            row, column = np.argwhere(~np.isfinite(values))[0].tolist()
            raise ValueError(
                f"w holds {values[row, column]} at {where}k={column}, "
                f"n={first + part.start + row}: expected finite weights within the range of float32"
            )
        target = slice(first + part.start, first + part.stop)
        stored = stored.reshape(values.shape)
        into.data[target] = pack_int4(stored) if into.kind == "int4" else stored
        into.scales[:, target] = scales.T
    if into.offsets is not None:
        into.offsets[:, rows] = 0
    _pad(into, rows)


def integer_rows(
    into: QuantizedWeights, first: int, values: Any, scales: Any, offsets: Any = None
) -> None:
    """Write rows of quantised numbers to `into`, exactly, as `quantize_rows` does.

    Row n has the weights scales[n, k // group] * values[n, k] + offsets[n, k // group].

    Args:
      values: int8 [rows, K], from -8 to 7 for int4; float8_e4m3fn for that kind.
      scales: [rows, ceil(K / group)], or [rows, 1].
      offsets: of the same shape, if `into` has offsets.

    Raises:
      ValueError: an argument outside its range, or an inexact scale or offset.
    """
    values = concrete("values", values)
    if values.dtype != storage_dtype(into.kind):
        raise ValueError(
            f"values of dtype {values.dtype}: expected {storage_dtype(into.kind)} for "
            f"kind={into.kind!r}"
        )
    rows = _place(into, first, "values", values)
    if into.kind == "float8_e4m3fn" and np.isnan(values.astype(np.float32)).any():
        raise ValueError("values hold NaN: expected finite numbers")
    if (offsets is None) != (into.offsets is None):
        has = "no offsets" if into.offsets is None else "offsets"
        raise ValueError(
            f"offsets={'None' if offsets is None else 'given'}: expected otherwise, since into has "
            f"{has}"
        )
    groups = -(-into.k // into.group) if into.group else 1
    pairs = [("scales", scales, into.scales, 1)]
    if offsets is not None:
        pairs.append(("offsets", offsets, into.offsets, 0))
    # everything is checked before anything is written
    exact = [_exact(name, array, (len(values), groups), to) for name, array, to, _ in pairs]
    if into.kind == "int4" and (values.min() < -8 or values.max() > 7):
        raise ValueError(f"values from {values.min()} to {values.max()}: expected -8 to 7 for int4")
    wide = padded_k(into.k, into.group)
    if into.kind == "int4":
        for part in _chunks(len(values), 4 * wide):
            padded = np.zeros((part.stop - part.start, wide), np.int8)
            padded[:, : into.k] = values[part]
            into.data[first + part.start : first + part.stop] = pack_int4(padded)
    else:
        into.data[rows, : into.k] = values
        into.data[rows, into.k :] = 0
    for (_, _, to, padding), rounded in zip(pairs, exact, strict=True):
        to[:groups, rows] = rounded.T
        to[groups:, rows] = padding
    _pad(into, rows)


def from_integers(
    values: Any,
    scales: Any,
    offsets: Any = None,
    *,
    kind: Kind,
    group: int | None = None,
    scale_dtype: str = "float32",
    offset_dtype: str = "float32",
) -> QuantizedWeights:
    """Pack quantised numbers, scales and offsets as NumPy weights, exactly.

    Args:
      values: int8 [.., N, K], from -8 to 7 for int4; float8_e4m3fn for that kind.
      scales: [.., N, ceil(K / group)], or [.., N, 1], exact in `scale_dtype`.
      offsets: of the same shape, or None: w = scale * value + offset.
      group: weights along K with one scale, a multiple of 32; None: a scale a column.

    Raises:
      ValueError: as `integer_rows`.
    """
    values, scales = concrete("values", values), concrete("scales", scales)
    offsets = None if offsets is None else concrete("offsets", offsets)
    if values.ndim < 2 or 0 in values.shape:
        shape = "x".join(map(str, values.shape))
        raise ValueError(f"values of shape {shape}: expected [.., N, K], none empty")
    *stack, n, k = values.shape
    for name, array in (("scales", scales), ("offsets", offsets)):
        if array is not None and array.shape[:-1] != values.shape[:-1]:
            raise ValueError(
                f"{name} of shape {array.shape}: expected {values.shape[:-1]} in front"
            )
    out = empty_weights(
        k,
        n,
        kind,
        group,
        stack=tuple(stack),
        scale_dtype=scale_dtype,
        offset_dtype=None if offsets is None else offset_dtype,
    )
    for index in np.ndindex(*stack):
        matrix_offsets = None if offsets is None else offsets[index]
        integer_rows(matrix_of(out, *index), 0, values[index], scales[index], matrix_offsets)
    return out


def concrete(name: str, array: Any) -> np.ndarray:
    """Return a concrete array as a NumPy array."""
    if isinstance(array, HostArray):
        array = array.data
    if isinstance(array, jax.core.Tracer) or not isinstance(array, jax.Array | np.ndarray):
        raise ValueError(f"{name} of type {type(array).__name__}: expected a concrete array")
    return np.asarray(array)


def _place(into: QuantizedWeights, first: int, name: str, matrix: np.ndarray) -> slice:
    for field, array in check_weights(into, stack_axes=0).items():
        if not isinstance(array, np.ndarray) or not array.flags.writeable:
            raise ValueError(f"into.{field}: expected a NumPy array that can be written to")
    if matrix.ndim != 2 or matrix.shape[0] < 1 or matrix.shape[1] != into.k:
        shape = "x".join(map(str, matrix.shape))
        raise ValueError(f"{name} of shape {shape}: expected [rows >= 1, K={into.k}]")
    if not 0 <= first <= into.n - len(matrix):
        raise ValueError(
            f"first={first}: expected from 0 to {into.n - len(matrix)} for {len(matrix)} of "
            f"N={into.n} rows"
        )
    return slice(first, first + len(matrix))


def _pad(into: QuantizedWeights, rows: slice) -> None:
    if rows.stop == into.n:
        into.data[into.n :] = 0
        into.scales[:, into.n :] = 1
        if into.offsets is not None:
            into.offsets[:, into.n :] = 0


def _exact(name: str, values: Any, shape: tuple[int, int], to: np.ndarray) -> np.ndarray:
    values = concrete(name, values)
    if str(values.dtype) not in FLOATS:
        raise ValueError(f"{name} of dtype {values.dtype}: expected one of {', '.join(FLOATS)}")
    if values.shape != shape:
        raise ValueError(f"{name} of shape {values.shape}: expected {shape}, one a row and group")
    with np.errstate(over="ignore"):
        stored: np.ndarray = values.astype(to.dtype)
    back = stored.astype(np.float64)
    wrong = (back != values.astype(np.float64)) | ~np.isfinite(back)
    if wrong.any():
        row, group = np.argwhere(wrong)[0].tolist()
        raise ValueError(
            f"{name} holds {values[row, group]} at row {row}, group {group}: expected finite "
            f"numbers that {to.dtype} holds exactly"
        )
    return stored


def _quantized(
    values: np.ndarray, kind: Kind, scale_dtype: np.dtype[Any]
) -> tuple[np.ndarray, np.ndarray]:
    """Return (stored numbers, scales [rows, groups]) of float32 values [rows, groups, group]."""
    top = np.maximum(values.max(-1), -values.min(-1))  # NaN stays NaN
    scale = np.maximum(top / np.float32(LARGEST[kind]), np.float32(_SMALLEST_SCALE))
    scale = np.where(top == 0, np.float32(1), scale)
    if not np.isfinite(scale).all():
        return values, scale
    if scale_dtype != np.float32:
        scale = _rounded_up(scale)
    ratio = values / scale[..., None].astype(np.float32)
    if kind == "float8_e4m3fn":
        np.clip(ratio, -LARGEST[kind], LARGEST[kind], out=ratio)
        return ratio.astype(ml_dtypes.float8_e4m3fn), scale
    np.rint(ratio, out=ratio)
    np.clip(ratio, -LARGEST[kind], LARGEST[kind], out=ratio)
    return ratio.astype(np.int8), scale


def _rounded_up(scale: np.ndarray) -> np.ndarray:
    """Round positive float32 numbers up to bfloat16: the upper half of their bits."""
    upper = (scale.view(np.uint32) + np.uint32(0xFFFF)) >> np.uint32(16)
    return upper.astype(np.uint16).view(ml_dtypes.bfloat16)


def _chunks(rows: int, row_bytes: int) -> Iterator[slice]:
    step = max(1, _CHUNK_BYTES // row_bytes)
    for start in range(0, rows, step):
        yield slice(start, min(rows, start + step))
