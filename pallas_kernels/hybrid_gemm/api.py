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
from pallas_kernels.counting import round_up
from pallas_kernels.gemm.api import multiply
from pallas_kernels.gemm.config import Config
from pallas_kernels.gemm.machine import present_machine
from pallas_kernels.gemm.specs import PACK_MULTIPLE, ROW_MULTIPLE, Gemm, WLayout
from pallas_kernels.gemm.staged import READERS, Reader, reader_of, staged_matmul
from pallas_kernels.hopper import expect
from pallas_kernels.host_memory import HostArray, in_host_memory
from pallas_kernels.hybrid_gemm.packing import PackedWeights, check_weights, stored_sizes


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

    alpha of the columns, to the nearest strip of tn, go to SymGEMM (output-stationary: W crosses
    the link once per `cluster` * tm rows); the rest go to AsymGEMM (weight-stationary: W crosses
    once, partial sums are added to O by TMA). The two write disjoint columns and need no
    synchronisation; at alpha 0 and 1 the launch has one path only. `alpha`, `sm_split`, `layer`
    and `sm_limit` are run-time scalars: changing them does not recompile, and inside `jit` they
    may be traced. A concrete value is checked here; a traced one is clamped to its range.

    `hybrid_gemm(x, w)` has the shortest measured or predicted time: this kernel, or, where the copy
    engine reads host memory faster than SMs (`reader`), copies of W in pieces, each multiplied by
    XLA during the next copy (`gemm.staged`).

    Ragged sizes: M is any number from 1; rows are padded to a multiple of 8 and the result is cut.
    K and N are multiples of 64, or any number with `pack_weights`, which adds zeros once at load
    time; x is padded to the packed K on each call. The rules are the same for every backend.

    Args:
      x: bf16 or f16 activations [M, K], in device memory.
      w: weights of the same dtype, [K, N] and so on (`w_layout`), or a stack [L, ...] of them, or
        `PackedWeights`; a jax array in `pinned_host` memory (never staged in HBM by "sm90") or in
        device memory.
      alpha: share of the columns for SymGEMM, in [0, 1]; None chooses the best one measured on
        this device or predicted for it (`heuristics.choice`, `best_alpha`). So does a traced
        NaN: one executable serves both.
      sm_split: SMs for SymGEMM, a multiple of `cluster` from 0 to `sm_limit`; by default the
        number with which both paths take the fewest tile steps (`sharing.balanced_clusters`).
      layer: index into a stack, in [0, L); required for a stack, None for a single matrix.
      cluster: CTAs along M that share a W tile of SymGEMM by TMA multicast: 1, 2, 4 or 8;
        None (default) chooses it with the tiles.
      sm_limit: SMs the launch may use, from `cluster` to the device's number, which is the
        default; rounded down to whole clusters. Emulates a MIG slice.
      out_dtype: dtype of x (default) or float32.
      w_layout: "kn" for W[K, N], "nk" for W[N, K], "tiles" for W[N / 64, K / 64, 64, 64];
        ignored for `PackedWeights`, which have a layout.
      config: tiles and grid instead of `heuristics.choose`, which does not depend on `alpha` nor
        `sm_limit`, so that changing those never recompiles; its cluster must be `cluster`.
      reader: part of the GPU that reads W: "sms" in the kernel; "copy_engine" into two pieces
        of device memory in turn, outside `jit` and without arguments of the kernel; "auto": the
        faster one outside `jit`, for a W in host memory on "sm90", if no argument of the kernel is
        given, else "sms".
      backend: "auto" is "sm90" where it can run, else "reference"; "sm90" raises rather than fall
        back; "interpret" runs the same kernel step by step on a CPU (slow, for tests);
        "reference" is jax.numpy and copies W to device memory.

    Returns:
      x @ w as [M, N], within `numerics.gemm_error_bound` of the exact product at any alpha, which
      changes the order of additions in float32 only. Bitwise repeatable for equal arguments.

    Raises:
      ValueError: an argument is outside its range; the message names it, its value and the range.
      KernelUnavailable: the device cannot run `backend`; names the device and what is missing.
      NotImplementedError: it is differentiated.

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
