"""`quantized_gemm`: checks the arguments, chooses backend and configuration, launches."""

from __future__ import annotations

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pallas_kernels.arguments import (
    Choice,
    Number,
    active_clusters,
    check_activations,
    interpret_settings,
    launch_scalars,
    layer_index,
    resolve_backend,
    sm_count,
    without_derivative,
)
from pallas_kernels.counting import round_up
from pallas_kernels.hopper import CLUSTERS
from pallas_kernels.host_memory import HostArray, host_ref, weight_operand
from pallas_kernels.quantized_gemm import reference
from pallas_kernels.quantized_gemm.config import Config, check_fits
from pallas_kernels.quantized_gemm.heuristics import choose
from pallas_kernels.quantized_gemm.packing import QuantizedWeights, padded_k
from pallas_kernels.quantized_gemm.specs import (
    KINDS,
    N_MULTIPLE,
    ROW_MULTIPLE,
    SCALE_DTYPES,
    QuantizedGemm,
    bits,
    check_group,
    storage_dtype,
)


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
      w: of `quantize`, [K, N] or a stack of them; arrays in `pinned_host` or in device memory,
        weights and scales each.
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
    data, scales = _weights(w)
    rows = check_activations(x, w.k, out_dtype)
    if cluster is not None and cluster not in CLUSTERS:
        raise ValueError(f"cluster={cluster!r}: expected 1, 2, 4 or 8, or None to choose it")
    x_dtype = str(x.dtype)
    gemm = QuantizedGemm(
        m=round_up(rows, ROW_MULTIPLE),
        k=padded_k(w.k, w.group),
        n=round_up(w.n, N_MULTIPLE),
        kind=w.kind,
        group=w.group,
        dtype=x_dtype,
        out_dtype=x_dtype if out_dtype is None else str(jnp.dtype(out_dtype)),
        scale_dtype=str(scales.dtype),
        layers=data.shape[0] if data.ndim == 3 else None,
    )
    if config is None:
        device_sms = sm_count(chosen, cluster or 1)
        if cluster is not None and cluster > device_sms:
            raise ValueError(f"cluster={cluster}: expected at most the device's {device_sms} SMs")
        config = choose(gemm, sm_count=device_sms, cluster=cluster)
    elif cluster not in (None, config.cluster):
        raise ValueError(f"cluster={cluster}: expected config.cluster={config.cluster}")
    check_fits(config, gemm)
    scalars = launch_scalars(
        (
            active_clusters(sm_limit, cluster=config.cluster, sm_count=config.sm_count),
            layer_index(layer, gemm.layers),
        )
    )
    x, data, scales = (
        jnp.asarray(a) if isinstance(a, np.ndarray) else a for a in (x, data, scales)
    )
    if chosen != "sm90":
        data, scales = (weight_operand(a, backend=chosen) for a in (data, scales))
    x, scales = without_derivative("quantized_gemm", x, scales)
    out: jax.Array = launch(
        x,
        data,
        scales,
        scalars,
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
        out = reference.matmul(x, data, scales, scalars[1], gemm=gemm)
    else:
        from pallas_kernels.quantized_gemm import sm90

        kernel = sm90.build(gemm, config, interpret=interpret)
        out = kernel(x, host_ref(data), host_ref(scales), scalars)
    return out[:rows, :columns]


def _weights(w: Any) -> tuple[Any, Any]:
    """Return (data, scales), checked against the sizes that `w` states."""
    if not isinstance(w, QuantizedWeights):
        raise ValueError(f"w of type {type(w).__name__}: expected QuantizedWeights of quantize()")
    arrays = []
    for name, array in (("data", w.data), ("scales", w.scales)):
        plain = array.data if isinstance(array, HostArray) else array
        if not isinstance(plain, jax.Array | np.ndarray):
            raise ValueError(f"w.{name} of type {type(plain).__name__}: expected an array")
        arrays.append(plain)
    data, scales = arrays
    if w.kind not in KINDS:
        raise ValueError(f"w.kind={w.kind!r}: expected one of {', '.join(KINDS)}")
    check_group(w.kind, w.group)
    if data.dtype != storage_dtype(w.kind):
        raise ValueError(
            f"w.data of dtype {data.dtype}: expected {storage_dtype(w.kind)} for kind={w.kind!r}"
        )
    if str(scales.dtype) not in SCALE_DTYPES:
        expected = " or ".join(SCALE_DTYPES)
        raise ValueError(f"w.scales of dtype {scales.dtype}: expected {expected}")
    k, n = padded_k(w.k, w.group), round_up(w.n, N_MULTIPLE)
    stack = tuple(data.shape[:-2])
    expected_data = (*stack, n, k * bits(w.kind) // 8)
    expected_scales = (*stack, k // (w.group or k), n)
    if len(stack) > 1 or tuple(data.shape) != expected_data or 0 in data.shape:
        raise ValueError(
            f"w.data of shape {tuple(data.shape)}: expected ([L,] {n}, {expected_data[-1]}) for "
            f"K={w.k}, N={w.n}, kind={w.kind!r}"
        )
    if tuple(scales.shape) != expected_scales:
        raise ValueError(
            f"w.scales of shape {tuple(scales.shape)}: expected {expected_scales}, "
            f"{math.prod(expected_scales[-2:])} scales a matrix"
        )
    return data, scales
