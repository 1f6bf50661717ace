"""The grouped product in plain jax.numpy: what the kernel has to agree with, on any device.

`jax.lax.ragged_dot` multiplies every row by every expert on a CPU: 20 times slower than this for
128 experts and 64 rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int, Shaped

from pallas_kernels.grouped_gemm.quantized import QuantizedGroupedGemm
from pallas_kernels.grouped_gemm.schedule import FIELDS, block_table
from pallas_kernels.grouped_gemm.specs import WLayout
from pallas_kernels.quantized_gemm import reference as quantized_reference


def grouped_matmul(
    x: Float[Array, "t k"],
    w: Float[Array, "... e a b"],
    group_sizes: Int[Array, " e"],
    layer: jax.Array | int = 0,
    *,
    w_layout: WLayout = "kn",
    out_dtype: str,
) -> Float[Array, "t n"]:
    """Multiply each expert's rows by its matrix, block by block; accumulated in float32.

    Experts without rows are not touched, and the work grows with the rows, not with the experts.

    Args:
      x: activations, rows sorted by expert.
      w: [E, K, N], [E, N, K] or a stack of them.
      group_sizes: rows of each expert, any values; rows beyond their sum give zeros.
      layer: which one of a stack.
      w_layout: "kn" or "nk".
      out_dtype: type of the result.
    """
    t, contract = x.shape[0], 0 if w_layout == "kn" else 1

    def product(rows: jax.Array, expert: jax.Array) -> jax.Array:
        where = (expert,) if w.ndim == 3 else (layer, expert)
        matrix = lax.dynamic_slice(w, (*where, 0, 0), (*(1 for _ in where), *w.shape[-2:]))
        return lax.dot_general(
            rows,
            matrix.reshape(w.shape[-2:]),
            (((1,), (contract,)), ((), ())),
            precision=lax.Precision.HIGHEST,
            preferred_element_type=jnp.float32,
        ).astype(out_dtype)

    n = w.shape[-1 if w_layout == "kn" else -2]
    return _by_block(x, group_sizes, product, n, out_dtype, _block_rows(t, w.shape[-3]))


def quantized_matmul(
    x: Float[Array, "t k"],
    data: Shaped[Array, "... e n stored_k"],
    scales: Float[Array, "... e groups n"],
    group_sizes: Int[Array, " e"],
    layer: jax.Array | int = 0,
    offsets: Float[Array, "... e groups n"] | None = None,
    *,
    gemm: QuantizedGroupedGemm,
) -> Float[Array, "t n"]:
    """Multiply each expert's rows by its quantised matrix, block by block.

    Experts without rows are not converted.

    Args:
      x: activations, rows sorted by expert, padded to K' columns.
      data: stored weights of shape `gemm.w_shape`.
      scales: of shape `gemm.scales_shape`.
      group_sizes: rows of each expert, any values; rows beyond their sum give zeros.
      layer: which one of a stack.
      offsets: of the shape of `scales`, or None.
      gemm: sizes and types.
    """
    every = gemm.experts * (gemm.layers or 1)
    rows = _block_rows(gemm.t, gemm.experts, most=256)  # a block converts all of a matrix
    one = replace(gemm.expert, m=rows, layers=every)

    def flat(array: jax.Array) -> jax.Array:
        return array.reshape(every, *array.shape[-2:])

    def product(rows: jax.Array, expert: jax.Array) -> jax.Array:
        return quantized_reference.matmul(
            rows,
            flat(data),
            flat(scales),
            layer * gemm.experts + expert,
            None if offsets is None else flat(offsets),
            gemm=one,
        )

    return _by_block(x, group_sizes, product, gemm.expert.n, gemm.expert.out_dtype, rows)


def _by_block(
    x: jax.Array,
    group_sizes: jax.Array,
    product: Callable[[jax.Array, jax.Array], jax.Array],
    n: int,
    out_dtype: str,
    rows: int,
) -> jax.Array:
    """Return `product(rows of x, their expert)` for every block of an expert's rows.

    Args:
      x: activations, rows sorted by expert.
      group_sizes: rows of each expert.
      product: of `rows` rows with the matrix of an expert, [rows, n].
      n: columns of the result.
      out_dtype: type of the result.
      rows: of a block.
    """
    t = x.shape[0]
    table, blocks, _ = block_table(group_sizes, t, rows, row_multiple=1)
    # Room for the last block to reach beyond the end.
    x = jnp.pad(x, ((0, rows), (0, 0)))
    columns = {name: table[:, column] for column, name in enumerate(FIELDS)}

    def multiply(number: jax.Array, out: jax.Array) -> jax.Array:
        one = {name: values[number] for name, values in columns.items()}
        top = one["begin"] + (number - one["first"]) * rows
        found = product(lax.dynamic_slice_in_dim(x, top, rows), one["expert"])
        mine = (top + jnp.arange(rows) < one["end"])[:, None]
        before = lax.dynamic_slice_in_dim(out, top, rows)
        return lax.dynamic_update_slice_in_dim(out, jnp.where(mine, found, before), top, 0)

    zeros = jnp.zeros((t + rows, n), out_dtype)
    out: jax.Array = lax.fori_loop(0, blocks, multiply, zeros)
    return out[:t]


def _block_rows(t: int, experts: int, most: int = 64) -> int:
    """Return a power of two near the rows of an expert: from 8 to what was fastest on a CPU."""
    rows = 8
    while rows < most and rows * experts < t:
        rows *= 2
    return rows
