"""Reference of the products in jax.numpy, on any device."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from pallas_kernels.array_types import Array, Float, Int, Shaped
from pallas_kernels.gemm.layout import row_major, unpack_int4
from pallas_kernels.gemm.schedule import FIELDS, block_table
from pallas_kernels.gemm.specs import K_MULTIPLE, Gemm

_CHUNK = 1024  # weights along K that are scaled at a time, or one group


def matmul(
    gemm: Gemm,
    x: Float[Array, "m k"],
    w: Shaped[Array, ...],
    layer: jax.Array | int = 0,
    *,
    scales: Float[Array, ...] | None = None,
    offsets: Float[Array, ...] | None = None,
    group_sizes: Int[Array, " e"] | None = None,
) -> Float[Array, "rows n"]:
    """Return the product, accumulated in float32 and rounded once."""
    if group_sizes is None:
        return _one(gemm, x, *_matrix(gemm, (w, scales, offsets), layer)).astype(gemm.out_dtype)

    def product(rows: jax.Array, expert: jax.Array) -> jax.Array:
        number = layer * (gemm.experts or 1) + expert
        parts = _matrix(gemm, (w, scales, offsets), number)
        return _one(gemm, rows, *parts).astype(gemm.out_dtype)

    most = 64 if gemm.quantised is None else 256  # a block converts all of a matrix
    rows = _block_rows(gemm.m, gemm.experts or 1, most)
    return _by_block(gemm, x, group_sizes, product, rows)


def sums_of(x: Float[Array, "m k"], size: int) -> Float[Array, "k_over_size m"]:
    """Return float32 sums of `size` neighbours along K, the offsets' factors."""
    m, k = x.shape
    return x.astype(jnp.float32).reshape(m, k // size, size).sum(-1).T


def _one(
    gemm: Gemm, x: jax.Array, w: jax.Array, scales: Any = None, offsets: Any = None
) -> jax.Array:
    if scales is not None:
        return _converted(gemm, x, w, scales, offsets)
    matrix = row_major(w) if gemm.w_layout == "tiles" else w
    contract = 0 if gemm.w_layout == "kn" else 1
    return lax.dot_general(
        x,
        matrix,
        (((1,), (contract,)), ((), ())),
        # float32 products of two-byte types are exact; the default may add in a shorter type
        precision=lax.Precision.HIGHEST,
        preferred_element_type=jnp.float32,
    )


def _converted(gemm: Gemm, x: jax.Array, data: jax.Array, scales: Any, offsets: Any) -> jax.Array:
    """Scale weights (and add offsets) in float32, in chunks of K."""
    size = _chunk(gemm)
    stored_size, groups = data.shape[1] * size // gemm.k, max(1, size // gemm.group_size)
    is_int4 = gemm.quantised is not None and gemm.quantised.kind == "int4"

    def by_column(numbers: jax.Array, chunk: jax.Array | int) -> jax.Array:
        first = chunk * size // gemm.group_size
        rows = lax.dynamic_slice_in_dim(numbers, first, groups, axis=0)
        return rows.astype(jnp.float32).T[:, :, None]

    def sums(chunk: jax.Array | int) -> jax.Array:
        xs = lax.dynamic_slice_in_dim(x, chunk * size, size, axis=1)
        ws = lax.dynamic_slice_in_dim(data, chunk * stored_size, stored_size, axis=1)
        if is_int4:
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
    return total


def _matrix(gemm: Gemm, arrays: tuple[Any, ...], number: jax.Array | int) -> tuple[Any, ...]:
    stacked = (gemm.layers is not None) + (gemm.experts is not None)
    if not stacked:
        return arrays
    return tuple(
        None if one is None else _stored_of(one.reshape(-1, *one.shape[stacked:]), number)
        for one in arrays
    )


def _stored_of(stack: jax.Array, number: jax.Array | int) -> jax.Array:
    """Return one matrix of a stack; barriers keep XLA from conversion of the stack."""
    if stack.dtype.itemsize != 1 or jnp.issubdtype(stack.dtype, jnp.integer):
        whole: jax.Array = lax.dynamic_index_in_dim(stack, number, keepdims=False)
        return whole
    barrier: Any = lax.optimization_barrier
    stack, number = barrier((stack, jnp.asarray(number, jnp.int32)))
    stored = lax.bitcast_convert_type(stack, jnp.int8)
    one = barrier(lax.dynamic_index_in_dim(stored, number, keepdims=False))
    matrix: jax.Array = lax.bitcast_convert_type(one, stack.dtype)
    return matrix


# `jax.lax.ragged_dot` multiplies every row by every expert on a CPU: 20 times slower than this with
# 128 experts and 64 rows.
def _by_block(
    gemm: Gemm,
    x: jax.Array,
    group_sizes: jax.Array,
    product: Callable[[jax.Array, jax.Array], jax.Array],
    rows: int,
) -> jax.Array:
    t = gemm.m
    table, blocks, _ = block_table(group_sizes, t, rows, row_multiple=1, xp=jnp)
    # Room for the last block to reach beyond the end.
    x = jnp.pad(x[:t], ((0, rows), (0, 0)))
    columns = {name: table[:, column] for column, name in enumerate(FIELDS)}

    def multiply(number: jax.Array, out: jax.Array) -> jax.Array:
        one = {name: values[number] for name, values in columns.items()}
        top = one["begin"] + (number - one["first"]) * rows
        block = product(lax.dynamic_slice_in_dim(x, top, rows), one["expert"])
        mine = (top + jnp.arange(rows) < one["end"])[:, None]
        before = lax.dynamic_slice_in_dim(out, top, rows)
        return lax.dynamic_update_slice_in_dim(out, jnp.where(mine, block, before), top, 0)

    zeros = jnp.zeros((t + rows, gemm.n), gemm.out_dtype)
    out: jax.Array = lax.fori_loop(0, blocks, multiply, zeros)
    return out[:t]


def _block_rows(t: int, experts: int, most: int) -> int:
    rows = 8
    while rows < most and rows * experts < t:
        rows *= 2
    return rows


def _chunk(gemm: Gemm) -> int:
    if gemm.groups == 1:
        return gemm.k
    unit = math.lcm(gemm.group_size, K_MULTIPLE)
    units = gemm.k // unit
    return unit * max(
        d for d in range(1, units + 1) if units % d == 0 and d * unit <= max(unit, _CHUNK)
    )
