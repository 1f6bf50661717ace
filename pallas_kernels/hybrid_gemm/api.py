"""`hybrid_gemm`: checks its arguments; `gemm.api` does the rest."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pallas_kernels.arguments import (
    Choice,
    Number,
    check_activations,
    check_cluster,
    layer_index,
    resolve_backend,
)
from pallas_kernels.capability import Backend
from pallas_kernels.gemm.api import multiply
from pallas_kernels.gemm.config import Config
from pallas_kernels.gemm.machine import present_machine
from pallas_kernels.gemm.specs import PACK_MULTIPLE, ROW_MULTIPLE, Gemm, WLayout
from pallas_kernels.gemm.staging import READERS, Reader, reader_of, staged_matmul
from pallas_kernels.hopper import expect
from pallas_kernels.host_memory import HostArray, in_host_memory
from pallas_kernels.hybrid_gemm.packing import PackedWeights, check_weights, stored_sizes
from pallas_kernels.integer_math import round_up


def hybrid_gemm(
    x: Any,
    w: Any,
    alpha: Number | None = None,
    *,
    sm_split: Number | None = None,
    layer: Number | None = None,
    cluster: int | None = None,
    sm_limit: Number | None = None,
    out_dtype: Any = None,
    w_layout: WLayout = "kn",
    config: Config | None = None,
    reader: Reader = "auto",
    backend: Choice = "auto",
) -> jax.Array:
    """Multiply activations in device memory by weights that stay in host memory.

    alpha of the columns go to SymGEMM (W crosses the link once per `cluster` * tm rows), the rest
    to AsymGEMM (W once, partial sums added to O by TMA). `alpha`, `sm_split`, `layer` and
    `sm_limit` do not recompile; concrete values are checked, traced ones clamped.

    `hybrid_gemm(x, w)` is the fastest of this kernel and copies of W in pieces (`gemm.staged`).

    M is any number from 1; K and N are multiples of 64, or any with `pack_weights`.

    Args:
      x: bf16 or f16 [M, K], in device memory.
      w: of the same dtype, [K, N] and so on (`w_layout`), a stack [L, ...] or `PackedWeights`; in
        `pinned_host` or device memory.
      alpha: share of columns for SymGEMM, in [0, 1]; None, or a traced NaN: the best measured or
        predicted.
      sm_split: SMs for SymGEMM, a multiple of `cluster` from 0 to `sm_limit`; balanced by default.
      layer: index into a stack, in [0, L); None: a matrix.
      cluster: CTAs along M that share a W tile of SymGEMM: 1, 2, 4 or 8; None: chosen.
      sm_limit: SMs of the launch, from `cluster`, in whole clusters; all by default. Emulates a MIG
        slice.
      out_dtype: dtype of x (default) or float32.
      w_layout: "kn" for W[K, N], "nk" for W[N, K], "tiles" for W[N / 64, K / 64, 64, 64].
      config: tiles and grid instead of `heuristics.choose`, with `cluster`.
      reader: "sms" (the kernel), "copy_engine" (pieces in device memory; outside `jit`, no kernel
        arguments) or "auto" (the faster possible one).
      backend: "auto" is "sm90" where it can run, else "reference"; "sm90" never falls back;
        "interpret" runs the kernel on a CPU; "reference" copies W to device memory.

    Returns:
      x @ w as [M, N], within `numerics.gemm_error_bound` at any alpha. Bitwise repeatable for equal
      arguments.

    Raises:
      ValueError: an argument outside its range.
      KernelUnavailable: no device for `backend`.
      NotImplementedError: differentiation.

    Source: C2CServe, Algorithm 1. Ours: multicast, the SM split apart from alpha, ragged edges.
    """
    chosen = resolve_backend(backend)
    data, k, n, layers, w_layout = _weights(w, w_layout)
    rows, out = check_activations(x, k, out_dtype, w_dtype=data.dtype)
    check_cluster(cluster)
    gemm = Gemm(
        m=round_up(rows, ROW_MULTIPLE),
        k=round_up(k, PACK_MULTIPLE),
        n=round_up(n, PACK_MULTIPLE),
        dtype=str(x.dtype),
        out_dtype=out,
        layers=layers,
        w_layout=w_layout,
    )
    options = {
        "alpha": alpha, "sm_split": sm_split, "cluster": cluster, "sm_limit": sm_limit,
        "config": config,
    }  # fmt: skip
    fixed = [name for name, value in options.items() if value is not None]
    traced = any(isinstance(one, jax.core.Tracer) for one in (x, data, layer))
    if _reader(reader, fixed, gemm, data, chosen, traced=traced) == "copy_engine":
        index = layer_index(layer, layers)
        return staged_matmul(jnp.asarray(x), data, index, gemm=gemm, columns=n)
    return multiply(
        "hybrid_gemm",
        gemm,
        x,
        data,
        columns=n,
        alpha=alpha,
        sm_split=sm_split,
        sm_limit=sm_limit,
        layer=layer,
        cluster=cluster,
        config=config,
        backend=chosen,
    )


def _reader(
    reader: str, fixed: list[str], gemm: Gemm, w: Any, backend: Backend, *, traced: bool
) -> str:
    expect(reader in READERS, "reader", reader, f"one of {', '.join(READERS)}")
    if reader == "copy_engine":
        names = f"'sms' or 'auto', since {', '.join(fixed)} are of the kernel"
        expect(not fixed, "reader", reader, names)
        expect(not traced, "reader", reader, "'sms' or 'auto' inside jit, see gemm.staged")
        expect(backend != "interpret", "backend", backend, f"another one for {reader=}")
        expect(isinstance(w, jax.Array), "w", type(w).__name__, f"a jax array for {reader=}")
    if reader != "auto":
        return reader
    if fixed or traced or backend != "sm90" or not in_host_memory(w):
        return "sms"
    return reader_of(gemm, present_machine())


def _weights(w: Any, w_layout: str) -> tuple[Any, int, int, int | None, Any]:
    if isinstance(w, PackedWeights):
        data, w_layout = w.data, w.w_layout
    else:
        data = w
    if isinstance(data, HostArray):
        data = data.data
    if not isinstance(data, jax.Array | np.ndarray):
        raise ValueError(
            f"w of type {type(data).__name__}: expected an array, HostArray or PackedWeights"
        )
    check_weights(data, w_layout)
    *stored, layers = stored_sizes(data, w_layout)
    for name, size in zip(("K", "N"), stored, strict=True):
        if size % PACK_MULTIPLE:
            raise ValueError(
                f"w with {name}={size}: expected a multiple of {PACK_MULTIPLE}, which pack_weights "
                f"makes of any size"
            )
    k, n = (w.k, w.n) if isinstance(w, PackedWeights) else stored
    if [round_up(k, PACK_MULTIPLE), round_up(n, PACK_MULTIPLE)] != stored:
        raise ValueError(
            f"w packed for K={k}, N={n} holds {stored[0]}x{stored[1]}: expected both rounded up to "
            f"multiples of {PACK_MULTIPLE}"
        )
    return data, k, n, layers, w_layout
