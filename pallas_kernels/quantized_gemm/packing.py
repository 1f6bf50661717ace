"""Weights of fewer bits: how they are made from floats, stored, and turned back.

Symmetric, round to nearest: q = round(w / s) with s = max |w| / q_max over a column, or over a
group of a column's weights along K. No zero points: a product with them would need sums of X.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import jax
import ml_dtypes
import numpy as np
from jaxtyping import Float

from pallas_kernels.counting import round_up
from pallas_kernels.host_memory import HostArray
from pallas_kernels.quantized_gemm.specs import (
    K_MULTIPLE,
    KINDS,
    N_MULTIPLE,
    PACK_BLOCK,
    SCALE_DTYPES,
    Kind,
    bits,
    check_group,
    storage_dtype,
)

LARGEST = {"int8": 127.0, "int4": 7.0, "float8_e4m3fn": 448.0}
"""The largest stored magnitude: -128 and -8 are left out, for symmetry."""

_CHUNK_BYTES = 64 << 20  # of float32 at a time
_FLOATS = ("bfloat16", "float16", "float32", "float64")
_SMALLEST_SCALE = float(np.finfo(np.float32).tiny)  # GPUs may flush smaller numbers to zero


@jax.tree_util.register_dataclass
@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizedWeights:
    """A quantised weight matrix, or a stack of them: a pytree of two arrays.

    `data` is [N', K'] of the kind's storage type, K' / 2 bytes wide for int4 (see `specs`), with
    any number of layers before. `scales` is [G, N'], one row a group, a single row without groups.
    N' and K' are `n` and `k` with padding: zeros with a scale of 1. The tree may be moved between
    memories; `to_host` places both arrays in host memory, where the kernel reads both.
    """

    data: Any  # jax or NumPy array or HostArray; other things while jax transforms the tree
    scales: Any
    k: int = field(metadata={"static": True})
    n: int = field(metadata={"static": True})
    kind: Kind = field(metadata={"static": True})
    group: int | None = field(metadata={"static": True})

    @property
    def nbytes(self) -> int:
        """Bytes of weights and scales."""
        return int(self.data.nbytes + self.scales.nbytes)


def padded_k(k: int, group: int | None) -> int:
    """Return K' for K: whole K steps of the kernel and whole groups.

    >>> padded_k(1000, 384)
    1152
    """
    return round_up(k, math.lcm(K_MULTIPLE, group or 1))


def quantize(
    w: Any,
    kind: Kind = "int8",
    group: int | None = None,
    w_layout: str = "kn",
    *,
    scale_dtype: str = "float32",
) -> QuantizedWeights:
    """Quantise weights, symmetric and to the nearest.

    At most 64 MB of float32 are in use beside input and result.

    Args:
      w: bf16, f16, f32 or f64, [K, N] or [N, K] (`w_layout`) or a stack [L, ...] of them; NumPy
        array, jax array or `HostArray`, not traced.
      kind: "int8", "float8_e4m3fn" or "int4".
      group: weights along K that share a scale, a multiple of 64 (128 for int4); None for one
        scale a column.
      w_layout: "kn" or "nk", of the input; the result is always [.., N, K].
      scale_dtype: "float32", or "bfloat16" for half the bytes; those are rounded up, so that
        no weight is cut off.

    Returns:
      NumPy weights, to be placed with `to_host`. |w - dequantize(...)| is at most
      `numerics.quantization_error_bound`. A group of zeros has the scale 1.

    Raises:
      ValueError: an argument is outside its range, or a weight is NaN or infinite.
    """
    w = _concrete("w", w)
    if kind not in KINDS:
        raise ValueError(f"kind={kind!r}: expected one of {', '.join(KINDS)}")
    check_group(kind, group)
    if w_layout not in ("kn", "nk"):
        raise ValueError(f"w_layout={w_layout!r}: expected 'kn' for W[K, N] or 'nk' for W[N, K]")
    if scale_dtype not in SCALE_DTYPES:
        raise ValueError(f"scale_dtype={scale_dtype!r}: expected one of {', '.join(SCALE_DTYPES)}")
    if w.ndim not in (2, 3) or 0 in w.shape:
        shape = "x".join(map(str, w.shape))
        raise ValueError(f"w of shape {shape}: expected a matrix or a stack [L, ...], none empty")
    if str(w.dtype) not in _FLOATS:
        raise ValueError(f"w of dtype {w.dtype}: expected one of {', '.join(_FLOATS)}")
    k, n = w.shape[-2:] if w_layout == "kn" else w.shape[-2:][::-1]
    if group is not None and group > round_up(k, K_MULTIPLE):
        raise ValueError(f"group={group}: expected at most K={k} rounded up to {K_MULTIPLE}")
    wide, tall = padded_k(k, group), round_up(n, N_MULTIPLE)
    groups = wide // group if group else 1
    data = np.zeros((*w.shape[:-2], tall, wide * bits(kind) // 8), storage_dtype(kind))
    scales = np.ones((*w.shape[:-2], groups, tall), _numpy_dtype(scale_dtype))
    for layer in np.ndindex(w.shape[:-2]):
        for columns in _chunks(n, wide):
            part = w[layer][:, columns].T if w_layout == "kn" else w[layer][columns]
            values = np.zeros((part.shape[0], wide), np.float32)
            with np.errstate(over="ignore"):  # found below
                values[:, :k] = part
            stored, scale = _quantized(values.reshape(-1, groups, wide // groups), kind, scales)
            if not np.isfinite(scale).all():
                column, row = np.argwhere(~np.isfinite(values))[0].tolist()
                where = "".join(f"layer {number}, " for number in layer)
                raise ValueError(
                    f"w holds {values[column, row]} at {where}k={row}, n={columns.start + column}: "
                    f"expected finite weights within the range of float32"
                )
            stored = stored.reshape(values.shape)
            data[layer][columns] = pack_int4(stored) if kind == "int4" else stored
            scales[layer][:, columns] = scale.T
    return QuantizedWeights(data=data, scales=scales, k=int(k), n=int(n), kind=kind, group=group)


def dequantize(qw: QuantizedWeights, w_layout: str = "kn") -> Float[np.ndarray, "*stack a b"]:
    """Return the weights that `qw` stands for, as float32 without the padding.

    Each is exact but for one rounding of scale times stored number.

    Args:
      qw: NumPy or jax arrays or `HostArray`s, not traced.
      w_layout: "kn" for [.., K, N], "nk" for [.., N, K].
    """
    data, scales = _concrete("qw.data", qw.data), _concrete("qw.scales", qw.scales)
    stored = unpack_int4(data) if qw.kind == "int4" else data
    *stack, n, k = stored.shape
    groups = scales.shape[-2]
    values = stored.astype(np.float32).reshape(*stack, n, groups, k // groups)
    values *= np.swapaxes(scales.astype(np.float32), -1, -2)[..., None]
    cut = values.reshape(*stack, n, k)[..., : qw.n, : qw.k]
    if w_layout == "kn":
        cut = np.swapaxes(cut, -1, -2)
    return np.ascontiguousarray(cut)


def pack_int4(values: np.ndarray) -> np.ndarray:
    """Pack int8 numbers from -8 to 7, [.., K], two to a byte: [.., K / 2]; K in whole blocks."""
    halves = values.reshape(*values.shape[:-1], -1, 2, PACK_BLOCK // 2)
    packed = (halves[..., 0, :] & 0x0F) | (halves[..., 1, :] << 4)
    return packed.astype(np.int8).reshape(*values.shape[:-1], -1)


def unpack_int4(packed: Any) -> Any:
    """Undo `pack_int4`, for NumPy arrays as for jax arrays."""
    low, high = (packed << 4) >> 4, packed >> 4  # arithmetic shifts: the sign is kept
    *rest, width = packed.shape
    blocks = (*rest, width // (PACK_BLOCK // 2), 1, PACK_BLOCK // 2)
    xp: Any = np if isinstance(packed, np.ndarray) else jax.numpy
    both = xp.concatenate([low.reshape(blocks), high.reshape(blocks)], axis=-2)
    return both.reshape(*rest, 2 * width)


def _quantized(values: np.ndarray, kind: Kind, scales: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return (stored numbers, scales [rows, groups]) of float32 values [rows, groups, group]."""
    top = np.maximum(values.max(-1), -values.min(-1))  # NaN stays NaN
    scale = np.maximum(top / np.float32(LARGEST[kind]), np.float32(_SMALLEST_SCALE))
    scale = np.where(top == 0, np.float32(1), scale)
    if not np.isfinite(scale).all():
        return values, scale
    if scales.dtype != np.float32:
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


def _numpy_dtype(name: str) -> np.dtype[Any]:
    return np.dtype(getattr(ml_dtypes, name, name))


def _chunks(n: int, k: int) -> Iterator[slice]:
    step = max(1, _CHUNK_BYTES // (4 * 4 * k))  # values, ratios and their masks
    for start in range(0, n, step):
        yield slice(start, min(n, start + step))


def _concrete(name: str, array: Any) -> np.ndarray:
    if isinstance(array, HostArray):
        array = array.data
    if isinstance(array, jax.core.Tracer) or not isinstance(array, jax.Array | np.ndarray):
        raise ValueError(f"{name} of type {type(array).__name__}: expected a concrete array")
    return np.asarray(array)
