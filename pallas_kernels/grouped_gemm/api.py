"""`grouped_gemm`: checks the arguments, chooses backend and configuration, launches."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pallas_kernels.arguments import (
    Choice,
    Number,
    check_activations,
    clusters_and_layer,
    interpret_settings,
    operand,
    resolve_backend,
    sm_count,
    without_derivative,
)
from pallas_kernels.capability import Backend
from pallas_kernels.grouped_gemm import heuristics, quantized_api, reference
from pallas_kernels.grouped_gemm.checks import check_choices, check_cluster_of, check_sizes
from pallas_kernels.grouped_gemm.config import Config
from pallas_kernels.grouped_gemm.schedule import block_table
from pallas_kernels.grouped_gemm.specs import WIDTH_MULTIPLE, GroupedGemm, WLayout
from pallas_kernels.hopper import INPUT_DTYPES
from pallas_kernels.host_memory import HostArray, host_ref
from pallas_kernels.quantized_gemm import Config as QuantizedConfig
from pallas_kernels.quantized_gemm import QuantizedWeights


def grouped_gemm(
    x: Any,
    w: Any,
    group_sizes: Any,
    *,
    layer: Number | None = None,
    cluster: int | None = 1,
    sm_limit: Number | None = None,
    out_dtype: Any = None,
    w_layout: WLayout = "kn",
    config: Config | QuantizedConfig | None = None,
    backend: Choice = "auto",
) -> jax.Array:
    """Multiply each expert's rows by its weights, which stay in host memory.

    The rows of x are sorted by expert: the first `group_sizes[0]` are expert 0's, the next
    `group_sizes[1]` expert 1's, without padding between them. Only experts with rows cross the
    link, each once for every `cluster` * tm of its rows (`traffic.launch_traffic`).

    `group_sizes`, `layer` and `sm_limit` are run-time values: changing them does not recompile, and
    inside `jit` they may be traced. Concrete values are checked here (group sizes that are a
    concrete jax array are fetched for that); traced ones are clamped: sizes below zero to zero,
    and groups are cut off at row T.

    Args:
      x: bf16 or f16 activations [T, K], in device memory; T is any number from 1.
      w: weights of the same dtype, [E, K, N] or [E, N, K] (`w_layout`), or a stack [L, E, ...] of
        them; `HostArray`, a jax array in `pinned_host` memory (never staged in HBM by "sm90") or
        in device memory. K and N are multiples of 64. Or `quantized_gemm.QuantizedWeights` of
        experts or of a stack of them: any K and N, and only the few bits of chosen experts move.
      group_sizes: integers [E], rows of each expert; their sum is at most T. The rows beyond it
        belong to no expert and their output is zero.
      layer: which experts of a stack, in [0, L); given for a stack and only then.
      cluster: CTAs along the rows that share a W tile by TMA multicast: 1, 2, 4 or 8; None takes
        the smallest with which most experts' W is read once (`heuristics.smallest_cluster`).
      sm_limit: SMs the launch may use, from `cluster` to the device's number, which is the
        default; rounded down to whole clusters. Emulates a MIG slice.
      out_dtype: dtype of x (default) or float32.
      w_layout: "kn" for W[E, K, N], "nk" for W[E, N, K]; quantised weights are always [N, K].
      config: tiles and grid instead of `choose` (`choose_quantized`, and of `quantized_gemm`'s
        type, for quantised weights); its cluster must be `cluster`.
      backend: "auto" is "sm90" where it can run, else "reference"; "sm90" raises rather than fall
        back; "interpret" runs the same kernel step by step on a CPU (slow, for tests);
        "reference" is jax.numpy and copies W to device memory.

    Returns:
      [T, N]: within `numerics.gemm_error_bound` of the exact products (one partial sum), or
      `quantized_gemm.product_error_bound` for quantised weights. Bitwise repeatable, and a row's
      result does not depend on the sizes of other groups.

    Raises:
      ValueError: an argument is outside its range; the message names it, its value and the range.
      KernelUnavailable: the device cannot run `backend`; names the device and what is missing.
      NotImplementedError: it is differentiated.
    """
    chosen = resolve_backend(backend)
    check_choices(cluster, w_layout)
    if isinstance(w, QuantizedWeights):
        return quantized_api.multiply(
            x,
            w,
            group_sizes,
            layer=layer,
            cluster=cluster,
            sm_limit=sm_limit,
            out_dtype=out_dtype,
            config=config,
            backend=chosen,
        )
    data, k, n = _weights(w, w_layout)
    rows = check_activations(x, k, out_dtype, w_dtype=data.dtype, rows="T")
    gemm = GroupedGemm(
        t=rows,
        k=k,
        n=n,
        experts=data.shape[-3],
        dtype=str(x.dtype),
        out_dtype=str(x.dtype if out_dtype is None else jnp.dtype(out_dtype)),
        layers=data.shape[0] if data.ndim == 4 else None,
        w_layout=w_layout,
    )
    sizes = check_sizes(group_sizes, t=gemm.t, experts=gemm.experts)
    tiles = _configuration(gemm, config, cluster, chosen)
    scalars = clusters_and_layer(
        sm_limit,
        layer,
        cluster=tiles.cluster,
        sm_count=tiles.sm_count,
        layers=gemm.layers,
    )
    x, data = without_derivative("grouped_gemm", jnp.asarray(x), operand(data, chosen))
    out: jax.Array = launch(
        x,
        data,
        sizes,
        scalars,
        gemm=gemm,
        config=None if chosen == "reference" else tiles,
        interpret=interpret_settings(chosen),
    )
    return out


@functools.partial(jax.jit, static_argnames=("gemm", "config", "interpret"))
def launch(
    x: jax.Array,
    w: jax.Array,
    group_sizes: jax.Array,
    scalars: jax.Array,
    *,
    gemm: GroupedGemm,
    config: Config | None,
    interpret: Any = None,
) -> jax.Array:
    """Make the block table and run the kernel, or the reference if there is no `config`.

    Args:
      x: [gemm.t, gemm.k].
      w: of shape `gemm.w_shape`.
      group_sizes: int32 [gemm.experts].
      scalars: int32, active clusters and layer.
      gemm: sizes and types.
      config: tiles and grid.
      interpret: settings of interpret mode, or None.
    """
    if config is None:
        return reference.grouped_matmul(
            x, w, group_sizes, scalars[1], w_layout=gemm.w_layout, out_dtype=gemm.out_dtype
        )
    from pallas_kernels.grouped_gemm import sm90

    table, expert_blocks, all_blocks = block_table(group_sizes, gemm.t, config.block_rows)
    x = jnp.pad(x, ((0, gemm.padded_rows - gemm.t), (0, 0)))
    every = jnp.stack([expert_blocks, all_blocks, scalars[0], scalars[1]])
    return sm90.build(gemm, config, interpret=interpret)(x, host_ref(w), table, every)


def _weights(w: Any, w_layout: str) -> tuple[Any, int, int]:
    """Return (array, K, N)."""
    data = w.data if isinstance(w, HostArray) else w
    if not isinstance(data, jax.Array | np.ndarray):
        raise ValueError(
            f"w of type {type(data).__name__}: expected an array, HostArray or QuantizedWeights"
        )
    shape = "x".join(map(str, data.shape))
    if data.ndim not in (3, 4) or 0 in data.shape:
        raise ValueError(
            f"w of shape {shape}: expected experts [E, ...] or a stack [L, E, ...], none empty"
        )
    if str(data.dtype) not in INPUT_DTYPES:
        raise ValueError(f"w of dtype {data.dtype}: expected one of {', '.join(INPUT_DTYPES)}")
    k, n = data.shape[-2:] if w_layout == "kn" else data.shape[-2:][::-1]
    for name, size in (("K", k), ("N", n)):
        if size % WIDTH_MULTIPLE:
            raise ValueError(
                f"w of shape {shape} with {name}={size}: expected a multiple of {WIDTH_MULTIPLE}; "
                "add zeros once, when the weights are loaded"
            )
    return data, int(k), int(n)


def _configuration(gemm: GroupedGemm, config: Any, cluster: int | None, backend: Backend) -> Config:
    if config is None:
        return heuristics.choose(gemm, sm_count=sm_count(backend, cluster or 1), cluster=cluster)
    check_cluster_of(config, Config, cluster)
    tiles: Config = config
    return tiles
