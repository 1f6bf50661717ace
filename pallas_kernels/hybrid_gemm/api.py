"""`hybrid_gemm`: checks the arguments, chooses backend and configuration, launches."""

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
    check_cluster,
    concrete,
    interpret_settings,
    launch_scalars,
    layer_index,
    operand,
    resolve_backend,
    sm_count,
    without_derivative,
)
from pallas_kernels.capability import Backend
from pallas_kernels.counting import round_up
from pallas_kernels.host_memory import HostArray, host_ref
from pallas_kernels.hybrid_gemm import heuristics, reference, sharing
from pallas_kernels.hybrid_gemm.config import Config
from pallas_kernels.hybrid_gemm.machine import machine_for, present_machine
from pallas_kernels.hybrid_gemm.packing import PackedWeights, check_weights, stored_sizes
from pallas_kernels.hybrid_gemm.prediction import best_alpha
from pallas_kernels.hybrid_gemm.schedule import Plan, counts
from pallas_kernels.hybrid_gemm.specs import (
    PACK_MULTIPLE,
    ROW_MULTIPLE,
    Gemm,
    WLayout,
)


def hybrid_gemm(
    x: Any,
    w: Any,
    alpha: Number | None,
    *,
    sm_split: Number | None = None,
    layer: Number | None = None,
    cluster: int | None = 1,
    sm_limit: Number | None = None,
    out_dtype: Any = None,
    w_layout: WLayout = "kn",
    config: Config | None = None,
    backend: Choice = "auto",
) -> jax.Array:
    """Multiply activations in device memory by weights that stay in host memory.

    alpha of the columns, to the nearest strip of tn, go to SymGEMM (output-stationary: W crosses
    the link once per `cluster` * tm rows); the rest go to AsymGEMM (weight-stationary: W crosses
    once, partial sums are added to O by TMA). The two write disjoint columns and need no
    synchronisation; at alpha 0 and 1 the launch has one path only. `alpha`, `sm_split`, `layer`
    and `sm_limit` are run-time scalars: changing them does not recompile, and inside `jit` they
    may be traced. A concrete value is checked here; a traced one is clamped to its range.

    Ragged sizes: M is any number from 1; rows are padded to a multiple of 8 and the result is cut.
    K and N are multiples of 64, or any number with `pack_weights`, which adds zeros once at load
    time; x is padded to the packed K on each call. Every backend has the same rules.

    Args:
      x: bf16 or f16 activations [M, K], in device memory.
      w: weights of the same dtype, [K, N] and so on (`w_layout`), or a stack [L, ...] of them, or
        `PackedWeights`; a jax array in `pinned_host` memory (never staged in HBM by "sm90") or in
        device memory.
      alpha: share of the columns for SymGEMM, in [0, 1]; None takes the best one that was measured
        on this device or is predicted for it (`heuristics.choice`, `best_alpha`). So does a traced
        NaN: one executable serves both.
      sm_split: SMs for SymGEMM, a multiple of `cluster` from 0 to `sm_limit`; by default the
        number with which both paths take the fewest tile steps (`sharing.balanced_clusters`).
      layer: which matrix of a stack, in [0, L); given for a stack and only then.
      cluster: CTAs along M that share a W tile of SymGEMM by TMA multicast: 1, 2, 4 or 8;
        None chooses it with the tiles.
      sm_limit: SMs the launch may use, from `cluster` to the device's number, which is the
        default; rounded down to whole clusters. Emulates a MIG slice.
      out_dtype: dtype of x (default) or float32.
      w_layout: "kn" for W[K, N], "nk" for W[N, K], "tiles" for W[N / 64, K / 64, 64, 64]; of
        `PackedWeights`, its own counts.
      config: tiles and grid instead of `heuristics.choose`, which does not depend on `alpha` nor
        `sm_limit`, so that changing those never recompiles; its cluster must be `cluster`.
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
    rows = check_activations(x, k, out_dtype, w_dtype=data.dtype)
    check_cluster(cluster)
    if alpha is None and sm_split is not None:
        raise ValueError(f"alpha=None: expected a number, since sm_split={sm_split} is given")
    x_dtype = str(x.dtype)
    gemm = Gemm(
        m=round_up(rows, ROW_MULTIPLE),
        k=round_up(k, PACK_MULTIPLE),
        n=round_up(n, PACK_MULTIPLE),
        dtype=x_dtype,
        out_dtype=x_dtype if out_dtype is None else str(jnp.dtype(out_dtype)),
        layers=layers,
        w_layout=w_layout,
    )
    config, alpha, sm_limit = _configuration(gemm, config, cluster, alpha, sm_limit, chosen)
    plan = plan_launch(gemm, config, alpha=alpha, sm_split=sm_split, sm_limit=sm_limit, layer=layer)
    fields = (plan.sym_strips, plan.sym_clusters, plan.active_clusters, plan.layer)
    scalars = launch_scalars(fields)
    x, data = without_derivative("hybrid_gemm", jnp.asarray(x), operand(data, chosen))
    out: jax.Array = launch(
        x,
        data,
        scalars,
        gemm=gemm,
        config=None if chosen == "reference" else config,
        interpret=interpret_settings(chosen),
        columns=n,
    )
    return out


def plan_launch(
    gemm: Gemm,
    config: Config,
    *,
    alpha: Number,
    sm_split: Number | None = None,
    sm_limit: Number | None = None,
    layer: Number | None = None,
) -> Plan:
    """Turn the run-time arguments of `hybrid_gemm` into the scalars of a launch.

    Returns:
      Python integers if all arguments are concrete, int32 arrays if one is traced.

    Raises:
      ValueError: a concrete argument is outside its range, or a path with columns gets no SM.
    """
    sizes = counts(config, gemm)
    whole = config.clusters * config.cluster
    known_alpha = concrete("alpha", alpha, float)
    if known_alpha is not None and not 0 <= known_alpha <= 1:  # also refuses NaN
        raise ValueError(f"alpha={known_alpha}: expected a number in [0, 1]")
    limit = concrete("sm_limit", config.sm_count if sm_limit is None else sm_limit, int)
    if limit is not None and not config.cluster <= limit <= config.sm_count:
        raise ValueError(
            f"sm_limit={limit}: expected from cluster={config.cluster} to {config.sm_count} SMs"
        )
    split = None if sm_split is None else concrete("sm_split", sm_split, int)
    top = whole if limit is None else limit // config.cluster * config.cluster
    if split is not None and (not 0 <= split <= top or split % config.cluster):
        raise ValueError(
            f"sm_split={split}: expected a multiple of cluster={config.cluster} from 0 to {top}"
        )
    which = layer_index(layer, gemm.layers)
    known = (
        known_alpha is not None and limit is not None and (sm_split is None or split is not None)
    )
    if known:
        active = top // config.cluster
        sym = int(sharing.sym_strips(sizes.strips, known_alpha))
        if split is None:
            clusters = int(sharing.balanced_clusters(config, sizes, sym, active))
        else:
            clusters = split // config.cluster
        _refuse_starved(config, sizes.strips, sym, clusters, active, known_alpha)
        plan = Plan(sym_strips=sym, sym_clusters=clusters, active_clusters=active, layer=which)
    else:
        plan = sharing.traced_plan(
            config,
            sizes,
            alpha=alpha,
            sm_split=sm_split,
            sm_limit=config.sm_count if sm_limit is None else sm_limit,
            layer=which,
            xp=jnp,
        )
    return plan


@functools.partial(jax.jit, static_argnames=("gemm", "config", "interpret", "columns"))
def launch(
    x: jax.Array,
    w: jax.Array,
    scalars: jax.Array,
    *,
    gemm: Gemm,
    config: Config | None,
    interpret: Any,
    columns: int,
) -> jax.Array:
    """Pad x, run the kernel (the reference if there is no `config`), cut the result."""
    rows = x.shape[0]
    x = jnp.pad(x, ((0, gemm.m - rows), (0, gemm.k - x.shape[1])))
    if config is None:
        layer = scalars[3]
        out = reference.matmul(x, w, layer, w_layout=gemm.w_layout, out_dtype=gemm.out_dtype)
    else:
        from pallas_kernels.hybrid_gemm import sm90

        out = sm90.build(gemm, config, interpret=interpret)(x, host_ref(w), scalars)
    return out[:rows, :columns]


def _weights(w: Any, w_layout: str) -> tuple[Any, int, int, int | None, Any]:
    """Return (array, K, N, layers, layout) of weights; K and N without the padding."""
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


def _configuration(
    gemm: Gemm,
    config: Config | None,
    cluster: int | None,
    alpha: Number | None,
    sm_limit: Number | None,
    backend: Backend,
) -> tuple[Config, Number, Number | None]:
    """Return (config, alpha, sm_limit) with what the caller left open filled in."""
    if config is not None and cluster not in (None, config.cluster):
        raise ValueError(f"cluster={cluster}: expected config.cluster={config.cluster}")
    limit = None if sm_limit is None else concrete("sm_limit", sm_limit, int)
    traced = alpha is not None and concrete("alpha", alpha, float) is None
    if config is not None and alpha is not None and not traced:
        return config, alpha, sm_limit
    if backend == "sm90":
        machine = present_machine()
    else:
        machine = machine_for(sm_count=sm_count(backend, cluster or 1))
    best: float | None = None
    if config is None:
        found = heuristics.choice(gemm, machine, cluster=cluster)
        config = found.config
        best = found.alpha if sm_limit is None else None
        # A device that runs fewer clusters at a time than its SMs hold has a smaller grid.
        if limit is not None and config.sm_count < limit <= machine.sm_count:
            sm_limit = limit = config.sm_count
    if alpha is None or traced:
        best = best_alpha(gemm, config, machine, sm_limit=limit) if best is None else best
        alpha = best if alpha is None else jnp.where(jnp.isnan(alpha), best, alpha)
    return config, alpha, sm_limit


def _refuse_starved(
    config: Config, strips: int, sym: int, clusters: int, active: int, alpha: float
) -> None:
    """Raise if a path has columns and no SM: they would stay unwritten."""
    for path, columns, has in (
        ("SymGEMM", sym, clusters),
        ("AsymGEMM", strips - sym, active - clusters),
    ):
        if columns and has <= 0:
            raise ValueError(
                f"sm_split={clusters * config.cluster}: leaves {path} none of "
                f"{active * config.cluster} SMs, expected at least {config.cluster}, since "
                f"alpha={alpha} gives it {columns} of {strips} column strips"
            )
