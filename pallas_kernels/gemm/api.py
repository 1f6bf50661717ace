"""Configuration and plan of a launch from arguments."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pallas_kernels.arguments import (
    Number,
    concrete,
    interpret_settings,
    launch_scalars,
    layer_index,
    operand,
    sm_count,
    without_derivative,
)
from pallas_kernels.capability import Backend
from pallas_kernels.gemm import heuristics, sharing
from pallas_kernels.gemm.config import Config, check_fits
from pallas_kernels.gemm.launch import launch
from pallas_kernels.gemm.machine import machine_for, present_machine
from pallas_kernels.gemm.prediction import best_alpha
from pallas_kernels.gemm.schedule import Plan, counts
from pallas_kernels.gemm.specs import Gemm
from pallas_kernels.hopper import expect


def multiply(
    op: str,
    gemm: Gemm,
    x: Any,
    w: Any,
    *,
    columns: int,
    alpha: Number | None,
    sm_split: Number | None,
    sm_limit: Number | None,
    layer: Number | None,
    cluster: int | None,
    config: Any,
    backend: Backend,
    scales: Any = None,
    offsets: Any = None,
    group_sizes: Any = None,
) -> jax.Array:
    """Choose open arguments, and launch.

    Args:
      alpha: share of columns for SymGEMM; None: the best.
      sm_split: SMs for SymGEMM, or None.
      sm_limit: SMs of the launch, or None.
      layer: index into a stack; None: a matrix.
      cluster: CTAs of a cluster; None: chosen.
      config: tiles and grid; None: chosen.

    Raises:
      ValueError: an argument outside its range.
    """
    if alpha is None and sm_split is not None:
        raise ValueError(f"alpha=None: expected a number, since sm_split={sm_split} is given")
    if config is not None and not isinstance(config, Config):
        kind = type(config)
        raise ValueError(
            f"config of type {kind.__module__}.{kind.__name__}: expected pallas_kernels.gemm.Config"
        )
    config, alpha, sm_limit = _configuration(gemm, config, cluster, alpha, sm_limit, backend)
    check_fits(config, gemm)
    plan = plan_launch(gemm, config, alpha=alpha, sm_split=sm_split, sm_limit=sm_limit, layer=layer)
    stored = [None if one is None else operand(one, backend) for one in (w, scales, offsets)]
    x = jnp.asarray(x)
    if gemm.quantised is None:
        x, w = without_derivative(op, x, stored[0])
    else:  # whole numbers have no derivative
        w = stored[0]
        x, scales, offsets = without_derivative(op, x, *stored[1:])
    out: jax.Array = launch(
        x,
        w,
        launch_scalars(plan.scalars),
        scales,
        offsets,
        group_sizes,
        gemm=gemm,
        config=None if backend == "reference" else config,
        interpret=interpret_settings(backend),
        columns=columns,
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
    """Return a launch's run-time scalars: Python integers, or int32 arrays if one is traced.

    Raises:
      ValueError: a concrete argument outside its range, or a path with columns but no SM.
    """
    sizes = counts(config, gemm)
    whole = config.clusters * config.cluster
    known_alpha = concrete("alpha", alpha, float)
    if known_alpha is not None:
        expect(0 <= known_alpha <= 1, "alpha", known_alpha, "a number in [0, 1]")  # not NaN
        has_path = config.asym or known_alpha == 1
        expect(has_path, "alpha", known_alpha, "1, since config.asym=False leaves AsymGEMM out")
    limit = concrete("sm_limit", config.sm_count if sm_limit is None else sm_limit, int)
    if limit is not None:
        allowed = f"from cluster={config.cluster} to {config.sm_count} SMs"
        expect(config.cluster <= limit <= config.sm_count, "sm_limit", limit, allowed)
    split = None if sm_split is None else concrete("sm_split", sm_split, int)
    top = whole if limit is None else limit // config.cluster * config.cluster
    if split is not None:
        allowed = f"a multiple of cluster={config.cluster} from 0 to {top}"
        expect(0 <= split <= top and split % config.cluster == 0, "sm_split", split, allowed)
    which = layer_index(layer, gemm.layers)
    is_static = (
        known_alpha is not None and limit is not None and (sm_split is None or split is not None)
    )
    plan = sharing.traced_plan(
        config,
        sizes,
        alpha=alpha if known_alpha is None else known_alpha,
        sm_split=sm_split if split is None else split,
        sm_limit=sm_limit if limit is None else limit,
        layer=which,
        xp=np if is_static else jnp,
    )
    if not is_static:
        return plan
    names = ("sym_strips", "sym_clusters", "active_clusters")
    plan = replace(plan, **{name: int(getattr(plan, name)) for name in names})
    sym_strips = int(sharing.sym_strips(sizes.strips, known_alpha))
    if plan.sym_strips != sym_strips:  # a path without SMs gave its columns away
        path, columns = ("AsymGEMM", sizes.strips - sym_strips)
        if plan.sym_strips == 0:
            path, columns = ("SymGEMM", sym_strips)
        raise ValueError(
            f"sm_split={plan.sym_clusters * config.cluster}: leaves {path} none of "
            f"{plan.active_clusters * config.cluster} SMs, expected at least {config.cluster}, "
            f"since alpha={known_alpha} gives it {columns} of {sizes.strips} column strips"
        )
    return plan


def _configuration(
    gemm: Gemm,
    config: Config | None,
    cluster: int | None,
    alpha: Number | None,
    sm_limit: Number | None,
    backend: Backend,
) -> tuple[Config, Number, Number | None]:
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
        choice = heuristics.choice(gemm, machine, cluster=cluster)
        config = choice.config
        best = choice.alpha if sm_limit is None else None
        # A device that runs fewer clusters at a time than its SMs hold has a smaller grid.
        if limit is not None and config.sm_count < limit <= machine.sm_count:
            sm_limit = limit = config.sm_count
    if alpha is None or traced:
        best = best_alpha(gemm, config, machine, sm_limit=limit) if best is None else best
        alpha = best if alpha is None else jnp.where(jnp.isnan(alpha), best, alpha)
    return config, alpha, sm_limit
