"""`quantized_gemm`: checks the arguments, chooses backend and configuration, launches."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp

from pallas_kernels.arguments import (
    Choice,
    Number,
    check_activations,
    check_cluster,
    clusters_and_layer,
    interpret_settings,
    operand,
    resolve_backend,
    sm_count,
    without_derivative,
)
from pallas_kernels.counting import round_up
from pallas_kernels.host_memory import host_ref
from pallas_kernels.quantized_gemm import reference
from pallas_kernels.quantized_gemm.config import Config, check_fits, sum_size
from pallas_kernels.quantized_gemm.heuristics import choose
from pallas_kernels.quantized_gemm.specs import N_MULTIPLE, ROW_MULTIPLE, QuantizedGemm
from pallas_kernels.quantized_gemm.weights import QuantizedWeights, check_weights, padded_k


def quantized_gemm(
    x: Any,
    w: QuantizedWeights,
    *,
    layer: Number | None = None,
    cluster: int | None = 1,
    sm_limit: Number | None = None,
    out_dtype: Any = None,
    config: Config | None = None,
    backend: Choice = "auto",
) -> jax.Array:
    """Multiply activations in device memory by quantised weights that stay in host memory.

    Weights cross the link in their few bits, once for every `cluster * tm` rows, and are converted
    in registers. `layer` and `sm_limit` are run-time scalars: changing them does not recompile, and
    inside `jit` they may be traced. A concrete value is checked here; a traced one is clamped.

    M is any number from 1: rows are padded to a multiple of 8 and the result is cut. K and N are
    any numbers: `quantize` has padded the weights, and x is padded to the weights' K.

    Args:
      x: bf16 or f16 activations [M, K], in device memory.
      w: of `quantize` or `from_integers`, [K, N] or a stack of them; arrays in `pinned_host` or in
        device memory, each of them. Offsets take part in the same launch.
      layer: which matrix of a stack, in [0, L); given for a stack and only then.
      cluster: CTAs along M that share a W tile by TMA multicast: 1, 2, 4 or 8; None takes the
        smallest that reads W once.
      sm_limit: SMs the launch may use, from `cluster` to the device's number, which is the
        default; rounded down to whole clusters. Emulates a MIG slice.
      out_dtype: dtype of x (default) or float32.
      config: tiles and grid instead of `choose`; its cluster must be `cluster`.
      backend: "auto" is "sm90" where it can run, else "reference"; "sm90" raises rather than fall
        back; "interpret" runs the same kernel step by step on a CPU (slow, for tests);
        "reference" is jax.numpy and copies W to device memory.

    Returns:
      x @ dequantised w as [M, N], within `numerics.product_error_bound`. Bitwise repeatable.

    Raises:
      ValueError: an argument is outside its range; the message names it, its value and the range.
      KernelUnavailable: the device cannot run `backend`; names the device and what is missing.
      NotImplementedError: it is differentiated.
    """
    chosen = resolve_backend(backend)
    arrays = check_weights(w, stack_axes=1)
    rows = check_activations(x, w.k, out_dtype)
    check_cluster(cluster)
    x_dtype = str(x.dtype)
    gemm = QuantizedGemm(
        m=round_up(rows, ROW_MULTIPLE),
        k=padded_k(w.k, w.group),
        n=round_up(w.n, N_MULTIPLE),
        kind=w.kind,
        group=w.group,
        dtype=x_dtype,
        out_dtype=x_dtype if out_dtype is None else str(jnp.dtype(out_dtype)),
        scale_dtype=str(arrays["scales"].dtype),
        offset_dtype=str(arrays["offsets"].dtype) if "offsets" in arrays else None,
        layers=arrays["data"].shape[0] if arrays["data"].ndim == 3 else None,
    )
    if config is None:
        device_sms = sm_count(chosen, cluster or 1)
        if cluster is not None and cluster > device_sms:
            raise ValueError(f"cluster={cluster}: expected at most the device's {device_sms} SMs")
        config = choose(gemm, sm_count=device_sms, cluster=cluster)
    elif cluster not in (None, config.cluster):
        raise ValueError(f"cluster={cluster}: expected config.cluster={config.cluster}")
    check_fits(config, gemm)
    scalars = clusters_and_layer(
        sm_limit,
        layer,
        cluster=config.cluster,
        sm_count=config.sm_count,
        layers=gemm.layers,
    )
    arrays = {name: operand(array, chosen) for name, array in arrays.items()}
    data, scales, offsets = (arrays.get(name) for name in ("data", "scales", "offsets"))
    x, scales, offsets = without_derivative("quantized_gemm", jnp.asarray(x), scales, offsets)
    out: jax.Array = launch(
        x,
        data,
        scales,
        scalars,
        offsets,
        gemm=gemm,
        config=None if chosen == "reference" else config,
        interpret=interpret_settings(chosen),
        columns=w.n,
    )
    return out


@functools.partial(jax.jit, static_argnames=("gemm", "config", "interpret", "columns"))
def launch(
    x: jax.Array,
    data: jax.Array,
    scales: jax.Array,
    scalars: jax.Array,
    offsets: jax.Array | None = None,
    *,
    gemm: QuantizedGemm,
    config: Config | None,
    interpret: Any = None,
    columns: int,
) -> jax.Array:
    """Pad x, run the kernel (the reference if there is no `config`), cut the result."""
    rows = x.shape[0]
    x = jnp.pad(x, ((0, gemm.m - rows), (0, gemm.k - x.shape[1])))
    if config is None:
        out = reference.matmul(x, data, scales, scalars[1], offsets, gemm=gemm)
    else:
        from pallas_kernels.quantized_gemm import sm90

        kernel = sm90.build(gemm, config, interpret=interpret)
        shift = []
        if offsets is not None:
            shift = [host_ref(offsets), reference.sums_of(x, sum_size(config, gemm))]
        out = kernel(x, host_ref(data), host_ref(scales), *shift, scalars)
    return out[:rows, :columns]
