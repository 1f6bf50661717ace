"""Grouped GEMM of experts' weights by XLA."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

__all__ = ["grouped_matmul"]

_FEW_ROWS = 4  # a group on average, up to which rows are multiplied one by one


def grouped_matmul(x: jax.Array, w: jax.Array, group_sizes: jax.Array) -> jax.Array:
    """Multiply rows by the transposes of their groups' matrices."""
    if len(x) > _FEW_ROWS * len(w):
        return _ragged(x, w, group_sizes)
    # On a CPU the other multiplies every row by every group.
    either: Any = lax.platform_dependent
    product: jax.Array = either(x, w, group_sizes, cpu=_row_by_row, default=_ragged)
    return product


def _row_by_row(x: jax.Array, w: jax.Array, group_sizes: jax.Array) -> jax.Array:
    ends = jnp.cumsum(group_sizes)
    rows = jnp.arange(len(x), dtype=jnp.int32)
    # A row beyond them all takes the last group, and is cleared.
    groups = jnp.minimum(jnp.searchsorted(ends, rows, side="right"), len(w) - 1)

    def multiply(row: jax.Array) -> jax.Array:
        matrix = lax.dynamic_index_in_dim(w, groups[row], keepdims=False)
        product: jax.Array = lax.dot_general(
            lax.dynamic_index_in_dim(x, row, keepdims=True),
            matrix,
            (((1,), (1,)), ((), ())),
            precision=lax.Precision.HIGHEST,
            preferred_element_type=jnp.float32,
        )
        return product[0]

    return jnp.where((rows < ends[-1])[:, None], lax.map(multiply, rows), 0).astype(x.dtype)


def _ragged(x: jax.Array, w: jax.Array, group_sizes: jax.Array) -> jax.Array:
    factory: Any = lax.RaggedDotDimensionNumbers  # untyped
    numbers = factory(
        dot_dimension_numbers=(((1,), (2,)), ((), ())),
        lhs_ragged_dimensions=[0],
        rhs_group_dimensions=[0],
    )
    product = lax.ragged_dot_general(
        x,
        w,
        group_sizes,
        numbers,
        precision=lax.Precision.HIGHEST,
        preferred_element_type=jnp.float32,
    )
    used = jnp.arange(x.shape[0], dtype=jnp.int32) < group_sizes.sum()
    return jnp.where(used[:, None], product, 0).astype(x.dtype)
