"""Quantisation of float weights, and its inverse."""

from __future__ import annotations

from typing import Any

import numpy as np

from pallas_kernels.array_types import Float, Float64
from pallas_kernels.gemm.layout import unpack_int4
from pallas_kernels.gemm.specs import Kind, check_kind
from pallas_kernels.quantized_gemm.rows import FLOATS, ROUNDED_SCALE_DTYPES, concrete, quantize_rows
from pallas_kernels.quantized_gemm.weights import (
    QuantizedWeights,
    arrays_of,
    empty_weights,
    matrix_of,
)


def quantize(
    w: Any,
    kind: Kind = "int8",
    group: int | None = None,
    w_layout: str = "kn",
    *,
    scale_dtype: str = "float32",
) -> QuantizedWeights:
    """Return quantised weights, symmetric and to the nearest, as NumPy arrays for `to_host`.

    q = round(w / s) with s = max |w| / q_max over a column, or a group of it along K.

    Args:
      w: bf16, f16, f32 or f64, [K, N] or [N, K] (`w_layout`) or a stack; not traced.
      group: weights along K with one scale, a multiple of 32; None: a scale a column.
      w_layout: "kn" or "nk", of the input; the result is [.., N, K].
      scale_dtype: "float32", or "bfloat16", rounded up so that no weight is clipped.

    Returns:
      Weights within `numerics.quantization_error_bound`; zeros have the scale 1.

    Raises:
      ValueError: an argument outside its range, or an infinite weight or NaN.
    """
    w = concrete("w", w)
    check_kind(kind)
    if w_layout not in ("kn", "nk"):
        raise ValueError(f"w_layout={w_layout!r}: expected 'kn' for W[K, N] or 'nk' for W[N, K]")
    if scale_dtype not in ROUNDED_SCALE_DTYPES:
        expected = ", ".join(ROUNDED_SCALE_DTYPES)
        raise ValueError(f"scale_dtype={scale_dtype!r}: expected one of {expected}")
    if w.ndim < 2 or 0 in w.shape:
        shape = "x".join(map(str, w.shape))
        raise ValueError(f"w of shape {shape}: expected a matrix or a stack [.., ...], none empty")
    if str(w.dtype) not in FLOATS:
        raise ValueError(f"w of dtype {w.dtype}: expected one of {', '.join(FLOATS)}")
    rows = w if w_layout == "nk" else np.swapaxes(w, -1, -2)
    *stack, n, k = rows.shape
    qw = empty_weights(k, n, kind, group, stack=tuple(stack), scale_dtype=scale_dtype)
    for layer in np.ndindex(*stack):
        names = ("layer", "expert") if len(layer) < 3 else ("matrix",) * len(layer)
        where = "".join(f"{name} {number}, " for name, number in zip(names, layer, strict=False))
        quantize_rows(matrix_of(qw, *layer), 0, rows[layer], where=where)
    return qw


def dequantize(qw: QuantizedWeights, w_layout: str = "kn") -> Float[np.ndarray, "*stack a b"]:
    """Return the dequantised weights as float32, without the padding.

    Each is rounded once, and once more for an offset.

    Args:
      w_layout: "kn" for [.., K, N], "nk" for [.., N, K].
    """
    product, offsets = _parts(qw, np.float32)
    if offsets is not None:
        product += offsets
    return _cut(qw, product, w_layout)


def magnitudes(qw: QuantizedWeights) -> Float64[np.ndarray, "*stack k n"]:
    """Return |scale * stored number| + |offset| of each weight, its error's scale."""
    product, offsets = _parts(qw, np.float64)
    np.abs(product, out=product)
    if offsets is not None:
        product += np.abs(offsets)
    return _cut(qw, product, "kn")


def _parts(qw: QuantizedWeights, dtype: Any) -> tuple[np.ndarray, np.ndarray | None]:
    arrays = {name: concrete(f"qw.{name}", array) for name, array in arrays_of(qw).items()}
    stored = unpack_int4(arrays["data"]) if qw.kind == "int4" else arrays["data"]
    *stack, n, k = stored.shape
    by_row = {
        name: np.swapaxes(arrays[name].astype(dtype), -1, -2)[..., None]
        for name in arrays.keys() - {"data"}
    }
    groups = by_row["scales"].shape[-2]
    values = stored.astype(dtype).reshape(*stack, n, groups, k // groups)
    values *= by_row["scales"]
    return values, by_row.get("offsets")


def _cut(qw: QuantizedWeights, values: np.ndarray, w_layout: str) -> np.ndarray:
    *stack, n, groups, size = values.shape
    cut = values.reshape(*stack, n, groups * size)[..., : qw.n, : qw.k]
    return np.ascontiguousarray(np.swapaxes(cut, -1, -2) if w_layout == "kn" else cut)
