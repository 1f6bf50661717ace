"""Launches of hybrid_gemm for timing, without its argument checks and uploads.

`hybrid_gemm` checks its arguments and uploads four scalars on each call, which is part of no
kernel. Here both are done before time counts; plan, kernel and padding are the same.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments.gpu import Context
from experiments.gpu.kernels import operands
from pallas_kernels.counting import round_up
from pallas_kernels.gemm import (
    ROW_MULTIPLE,
    Config,
    Gemm,
    Machine,
    Profile,
    WLayout,
    choose,
    machine_for,
    plan_launch,
    present_machine,
)
from pallas_kernels.host_memory import HostArray, host_ref
from pallas_kernels.hybrid_gemm import hybrid_gemm
from pallas_kernels.hybrid_gemm.packing import stored_sizes


def configuration(
    m: int,
    k: int,
    n: int,
    layers: int | None,
    cluster: int,
    context: Context,
    w_layout: WLayout = "kn",
    out_dtype: str = "bfloat16",
) -> tuple[Gemm, Config]:
    """Return the GEMM and the configuration that `hybrid_gemm` chooses for any alpha."""
    rows = round_up(m, ROW_MULTIPLE)
    gemm = Gemm(m=rows, k=k, n=n, layers=layers, w_layout=w_layout, out_dtype=out_dtype)
    return gemm, choose(gemm, machine(context, cluster), cluster=cluster)


def machine(context: Context, cluster: int = 1) -> Machine:
    """Return the device's rates for the heuristics; a few SMs of an H200 in a dry run."""
    if context.backend == "sm90":
        return present_machine()
    return machine_for(sm_count=max(operands.sms(context), 2 * cluster))


def hybrid(
    x: jax.Array,
    w: HostArray | jax.Array,
    context: Context,
    *,
    alpha: float,
    sm_limit: int | None = None,
    cluster: int = 1,
    config: Config | None = None,
    w_layout: WLayout = "kn",
    out_dtype: str = "bfloat16",
    profile: Profile | None = None,
) -> Callable[[int], jax.Array]:
    """Return `launch(number)`, which multiplies x by the layers of a stack in turn."""
    m, (k, n, layers) = x.shape[0], stored_sizes(w, w_layout)
    assert layers is not None
    gemm, chosen = configuration(m, k, n, layers, cluster, context, w_layout, out_dtype)
    config = chosen if config is None else config
    if context.backend == "reference":

        def slowly(number: int) -> jax.Array:
            return hybrid_gemm(
                x,
                w,
                alpha,
                layer=number % layers,
                cluster=cluster,
                sm_limit=sm_limit,
                w_layout=w_layout,
                out_dtype=out_dtype,
                backend="reference",
            )

        return slowly
    run = kernel(gemm, config, m, operands.interpret_settings(context), profile)
    data = operands.operand(w, context)
    plans = [
        plan_launch(gemm, config, alpha=alpha, sm_limit=sm_limit, layer=layer)
        for layer in range(layers)
    ]
    fields = [(p.sym_strips, p.sym_clusters, p.active_clusters, p.layer) for p in plans]
    scalars = [jax.device_put(np.array(f, np.int32)) for f in fields]
    operands.ready([x, data, *scalars])

    def launch(number: int) -> jax.Array:
        out: jax.Array = run(x, data, scalars[number % layers])
        return out

    return launch


@functools.lru_cache(maxsize=4)
def kernel(
    gemm: Gemm, config: Config, rows: int, interpret: Any, profile: Profile | None = None
) -> Any:
    """Build and jit the kernel of (x, w, scalars); the cache serves neighbouring cases."""
    from pallas_kernels.gemm import sm90

    built = sm90.build(gemm, config, interpret=interpret, profile=profile)

    @jax.jit
    def run(x: jax.Array, w: jax.Array, scalars: jax.Array) -> jax.Array:
        out = built(jnp.pad(x, ((0, gemm.m - rows), (0, 0))), host_ref(w), scalars)
        return out[:rows]

    return run
