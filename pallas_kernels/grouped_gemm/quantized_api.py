"""`grouped_gemm` of quantised experts: checks the weights, chooses a configuration, launches."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp

from pallas_kernels.arguments import (
    Number,
    check_activations,
    clusters_and_layer,
    interpret_settings,
    operand,
    sm_count,
    without_derivative,
)
from pallas_kernels.capability import Backend
from pallas_kernels.counting import round_up
from pallas_kernels.grouped_gemm import reference
from pallas_kernels.grouped_gemm.checks import check_cluster_of, check_sizes
from pallas_kernels.grouped_gemm.quantized import QuantizedGroupedGemm, choose_quantized
from pallas_kernels.grouped_gemm.schedule import block_table
from pallas_kernels.grouped_gemm.specs import ROW_MULTIPLE
from pallas_kernels.host_memory import host_ref
from pallas_kernels.quantized_gemm import Config, QuantizedGemm, QuantizedWeights, check_fits
from pallas_kernels.quantized_gemm.config import sum_size
from pallas_kernels.quantized_gemm.reference import sums_of
from pallas_kernels.quantized_gemm.specs import N_MULTIPLE
from pallas_kernels.quantized_gemm.weights import check_weights, padded_k


def multiply(
    x: Any,
    w: QuantizedWeights,
    group_sizes: Any,
    *,
    layer: Number | None,
    cluster: int | None,
    sm_limit: Number | None,
    out_dtype: Any,
    config: Any,
    backend: Backend,
) -> jax.Array:
    """Do what `grouped_gemm` describes, for quantised w."""
    arrays = check_weights(w, stack_axes=2)
    data = arrays["data"]
    if data.ndim < 3:
        raise ValueError(
            f"w.data of shape {tuple(data.shape)}: expected experts [E, ...] or a stack [L, E, ...]"
        )
    gemm = describe(
        w,
        t=check_activations(x, w.k, out_dtype, rows="T"),
        dtype=str(x.dtype),
        out_dtype=None if out_dtype is None else str(jnp.dtype(out_dtype)),
        stack=tuple(data.shape[:-2]),
        types={name: str(array.dtype) for name, array in arrays.items()},
    )
    sizes = check_sizes(group_sizes, t=gemm.t, experts=gemm.experts)
    if config is None:
        config = choose_quantized(gemm, sm_count=sm_count(backend, cluster or 1), cluster=cluster)
    check_cluster_of(config, Config, cluster)
    check_fits(config, gemm.expert)
    scalars = clusters_and_layer(
        sm_limit,
        layer,
        cluster=config.cluster,
        sm_count=config.sm_count,
        layers=gemm.layers,
    )
    arrays = {name: operand(array, backend) for name, array in arrays.items()}
    x, scales, offsets = without_derivative(
        "grouped_gemm", jnp.asarray(x), arrays["scales"], arrays.get("offsets")
    )
    out: jax.Array = launch(
        x,
        arrays["data"],
        scales,
        sizes,
        scalars,
        offsets,
        gemm=gemm,
        config=None if backend == "reference" else config,
        interpret=interpret_settings(backend),
        columns=w.n,
    )
    return out


def describe(
    w: QuantizedWeights,
    *,
    t: int,
    dtype: str,
    out_dtype: str | None,
    stack: tuple[int, ...],
    types: dict[str, str],
) -> QuantizedGroupedGemm:
    """Return the static description of a product.

    Args:
      w: whose k, n, kind and group are read.
      t: rows of x.
      dtype: of x.
      out_dtype: of the result; None for that of x.
      stack: (E,) or (L, E).
      types: of the arrays of w.
    """
    expert = QuantizedGemm(
        m=round_up(t, ROW_MULTIPLE),
        k=padded_k(w.k, w.group),
        n=round_up(w.n, N_MULTIPLE),
        kind=w.kind,
        group=w.group,
        dtype=dtype,
        out_dtype=out_dtype or dtype,
        scale_dtype=types["scales"],
        offset_dtype=types.get("offsets"),
    )
    *layers, experts = stack
    return QuantizedGroupedGemm(
        t=t, experts=experts, expert=expert, layers=layers[0] if layers else None
    )


@functools.partial(jax.jit, static_argnames=("gemm", "config", "interpret", "columns"))
def launch(
    x: jax.Array,
    data: jax.Array,
    scales: jax.Array,
    group_sizes: jax.Array,
    scalars: jax.Array,
    offsets: jax.Array | None = None,
    *,
    gemm: QuantizedGroupedGemm,
    config: Config | None,
    interpret: Any = None,
    columns: int,
) -> jax.Array:
    """Make the block table and run the kernel, or the reference if there is no `config`.

    Args:
      x: [gemm.t, K].
      data: of shape `gemm.w_shape`.
      scales: of shape `gemm.scales_shape`.
      group_sizes: int32 [gemm.experts].
      scalars: int32, active clusters and layer.
      offsets: of the shape of `scales`, or None.
      gemm: sizes and types.
      config: tiles and grid.
      interpret: settings of interpret mode, or None.
      columns: of the result, without padding.
    """
    x = jnp.pad(x, ((0, 0), (0, gemm.expert.k - x.shape[1])))
    if config is None:
        out = reference.quantized_matmul(
            x, data, scales, group_sizes, scalars[1], offsets, gemm=gemm
        )
        return out[:, :columns]
    from pallas_kernels.grouped_gemm import quantized_sm90

    table, expert_blocks, all_blocks = block_table(group_sizes, gemm.t, config.tm * config.cluster)
    x = jnp.pad(x, ((0, gemm.expert.m - gemm.t), (0, 0)))
    every = jnp.stack([expert_blocks, all_blocks, scalars[0], scalars[1]])
    shift = []
    if offsets is not None:
        shift = [host_ref(offsets), sums_of(x, sum_size(config, gemm.expert))]
    kernel = quantized_sm90.build(gemm, config, interpret=interpret)
    return kernel(x, host_ref(data), host_ref(scales), *shift, table, every)[:, :columns]
