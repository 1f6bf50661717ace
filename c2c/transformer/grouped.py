"""Experts' weights in device memory, multiplied by XLA in any float type.

`pallas_kernels.grouped_gemm` is for two-byte types and weights in host memory.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

__all__ = ["grouped_matmul"]


def grouped_matmul(x: jax.Array, w: jax.Array, group_sizes: jax.Array) -> jax.Array:
    """Multiply each row by the transpose of its group's matrix, in jax.numpy.

    Args:
      x: rows [T, K], those of a group together, in the order of the groups.
      w: a matrix a group, [E, N, K].
      group_sizes: int32 [E]; rows beyond their sum give 0.

    Returns:
      [T, N] in the type of x.
    """
    made: Any = lax.RaggedDotDimensionNumbers  # untyped
    numbers = made(
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
