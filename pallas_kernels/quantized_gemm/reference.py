"""The product in plain jax.numpy: what the kernel has to agree with, on any device."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Shaped

from pallas_kernels.quantized_gemm.packing import unpack_int4
from pallas_kernels.quantized_gemm.specs import K_MULTIPLE, QuantizedGemm

_CHUNK = 1024  # weights along K that are scaled at a time, or one group


def matmul(
    x: Float[Array, "m k"],
    data: Shaped[Array, "*stack n stored_k"],
    scales: Float[Array, "*stack groups n"],
    layer: jax.Array | int = 0,
    offsets: Float[Array, "*stack groups n"] | None = None,
    *,
    gemm: QuantizedGemm,
) -> Float[Array, "m n"]:
    """Return X W in float32, rounded once at the end.

    Weights are scaled (and shifted by their offsets) in float32, at most `_CHUNK` of a column at a
    time.

    Args:
      x: activations, padded to `gemm.k` columns.
      data: stored weights of shape `gemm.w_shape`.
      scales: of shape `gemm.scales_shape`.
      layer: which one of a stack.
      offsets: of the shape of `scales`, or None.
      gemm: sizes and types.
    """
    if gemm.layers is not None:
        data = _stored_of(data, layer)
        scales = lax.dynamic_index_in_dim(scales, layer, keepdims=False)
        if offsets is not None:
            offsets = lax.dynamic_index_in_dim(offsets, layer, keepdims=False)
    size = _chunk(gemm)
    stored_size, groups = data.shape[1] * size // gemm.k, max(1, size // gemm.group_size)

    def by_column(numbers: jax.Array, chunk: jax.Array | int) -> jax.Array:
        first = chunk * size // gemm.group_size
        rows = lax.dynamic_slice_in_dim(numbers, first, groups, axis=0)
        return rows.astype(jnp.float32).T[:, :, None]

    def sums(chunk: jax.Array | int) -> jax.Array:
        xs = lax.dynamic_slice_in_dim(x, chunk * size, size, axis=1)
        ws = lax.dynamic_slice_in_dim(data, chunk * stored_size, stored_size, axis=1)
        if gemm.kind == "int4":
            ws = unpack_int4(ws)
        ws = ws.astype(jnp.float32).reshape(gemm.n, groups, -1) * by_column(scales, chunk)
        if offsets is not None:
            ws = ws + by_column(offsets, chunk)
        return lax.dot_general(
            xs.astype(jnp.float32),
            ws.reshape(gemm.n, size),
            (((1,), (1,)), ((), ())),
            precision=lax.Precision.HIGHEST,
        )

    total = sums(0)
    if gemm.k > size:
        total = lax.fori_loop(1, gemm.k // size, lambda chunk, total: total + sums(chunk), total)
    return total.astype(gemm.out_dtype)


def _stored_of(stack: jax.Array, layer: jax.Array | int) -> jax.Array:
    """Return one matrix of a stack.

    XLA on a CPU slices no fp8: it converts the whole stack first. It does slice bytes; the barriers
    keep it from making the stack into bytes as a whole, once before a loop over layers.
    """
    if stack.dtype.itemsize != 1 or jnp.issubdtype(stack.dtype, jnp.integer):
        whole: jax.Array = lax.dynamic_index_in_dim(stack, layer, keepdims=False)
        return whole
    barrier: Any = lax.optimization_barrier
    stack, layer = barrier((stack, jnp.asarray(layer, jnp.int32)))
    stored = lax.bitcast_convert_type(stack, jnp.int8)
    one = barrier(lax.dynamic_index_in_dim(stored, layer, keepdims=False))
    matrix: jax.Array = lax.bitcast_convert_type(one, stack.dtype)
    return matrix


def sums_of(x: Float[Array, "m k"], size: int) -> Float[Array, "k_over_size m"]:
    """Return the float32 sums of `size` neighbours along K: what offsets are multiplied with."""
    m, k = x.shape
    return x.astype(jnp.float32).reshape(m, k // size, size).sum(-1).T


def _chunk(gemm: QuantizedGemm) -> int:
    """Whole groups and whole blocks of int4 that divide K, about `_CHUNK` weights."""
    if gemm.group is None:
        return gemm.k
    unit = math.lcm(gemm.group, K_MULTIPLE)
    units = gemm.k // unit
    return unit * max(
        d for d in range(1, units + 1) if units % d == 0 and d * unit <= max(unit, _CHUNK)
    )
