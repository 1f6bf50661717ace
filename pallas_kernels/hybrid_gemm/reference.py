"""The product in plain jax.numpy: what every kernel here has to agree with, on any device."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from pallas_kernels.hybrid_gemm.packing import row_major
from pallas_kernels.hybrid_gemm.specs import WLayout


def matmul(
    x: Float[Array, "m k"],
    w: Float[Array, ...],
    layer: jax.Array | int = 0,
    *,
    w_layout: WLayout = "kn",
    out_dtype: str,
) -> Float[Array, "m n"]:
    """Return X W with products accumulated in float32 and rounded once.

    Args:
      x: activations.
      w: [K, N], [N, K], tile-major, or a stack of them.
      layer: which one of a stack.
      w_layout: "kn", "nk" or "tiles".
      out_dtype: type of the result.
    """
    matrix = lax.dynamic_index_in_dim(w, layer, keepdims=False) if w.ndim % 2 else w
    matrix = row_major(matrix) if w_layout == "tiles" else matrix
    contract = 0 if w_layout == "kn" else 1
    product = lax.dot_general(
        x,
        matrix,
        (((1,), (contract,)), ((), ())),
        # float32 products of two-byte types are exact; the default may add in a shorter type
        precision=lax.Precision.HIGHEST,
        preferred_element_type=jnp.float32,
    )
    return product.astype(out_dtype)
