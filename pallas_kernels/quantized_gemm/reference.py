"""The product in plain jax.numpy: what the kernel has to agree with, on any device."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Shaped

from pallas_kernels.quantized_gemm.packing import unpack_int4
from pallas_kernels.quantized_gemm.specs import QuantizedGemm


def matmul(
    x: Float[Array, "m k"],
    data: Shaped[Array, "*stack n stored_k"],
    scales: Float[Array, "*stack groups n"],
    layer: jax.Array | int = 0,
    *,
    gemm: QuantizedGemm,
) -> Float[Array, "m n"]:
    """Return X W; sums of a group are scaled, in float32, and rounded once at the end.

    Scaled weights are never materialised, only stored numbers as float32, one group at a time.

    Args:
      x: activations, padded to `gemm.k` columns.
      data: stored weights of shape `gemm.w_shape`.
      scales: of shape `gemm.scales_shape`.
      layer: which one of a stack.
      gemm: sizes and types.
    """
    if gemm.layers is not None:
        data = lax.dynamic_index_in_dim(data, layer, keepdims=False)
        scales = lax.dynamic_index_in_dim(scales, layer, keepdims=False)
    size = gemm.group_size
    stored_size = data.shape[1] // gemm.groups

    def scaled(group: jax.Array | int) -> jax.Array:
        xs = lax.dynamic_slice_in_dim(x, group * size, size, axis=1)
        ws = lax.dynamic_slice_in_dim(data, group * stored_size, stored_size, axis=1)
        if gemm.kind == "int4":
            ws = unpack_int4(ws)
        sums = lax.dot_general(
            xs.astype(jnp.float32),
            ws.astype(jnp.float32),
            (((1,), (1,)), ((), ())),
            precision=lax.Precision.HIGHEST,
        )
        return sums * scales[group].astype(jnp.float32)

    total = scaled(0)
    if gemm.groups > 1:
        total = lax.fori_loop(1, gemm.groups, lambda group, sums: sums + scaled(group), total)
    return total.astype(gemm.out_dtype)
