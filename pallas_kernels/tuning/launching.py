"""Arrays and launches of the kernel under test: what the tuner times and checks."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pallas_kernels.capability import Backend
from pallas_kernels.gemm import Config, Gemm, plan_launch
from pallas_kernels.gemm.layout import tile_major
from pallas_kernels.gemm.reference import matmul
from pallas_kernels.host_memory import host_ref, to_host, weight_operand
from pallas_kernels.numerics import check_gemm

_SAMPLE = 64  # one row, and one column, of so many is checked: every tile of every warpgroup

Launch = Callable[[int], jax.Array]


@dataclass(frozen=True, slots=True, kw_only=True)
class Operands:
    """Inputs of one problem: x on the device, a stack of weights in host memory.

    Launches take one layer after the other, so that the L2 cannot hold what they read.
    """

    gemm: Gemm  # with its layers
    x: np.ndarray
    w: np.ndarray
    x_device: jax.Array
    w_operand: jax.Array
    backend: Backend


def layers_for(gemm: Gemm, l2_bytes: float) -> int:
    """Return how many layers are more than the L2 holds twice over; at least 2."""
    return max(2, math.ceil(2 * l2_bytes / (gemm.in_itemsize * gemm.k * gemm.n)))


@functools.lru_cache(maxsize=1)  # problems of equal weights follow each other
def _weights(
    k: int, n: int, w_layout: str, dtype: str, layers: int, seed: int, backend: Backend
) -> tuple[np.ndarray, jax.Array]:
    rng = np.random.default_rng([seed, k, n])
    shape = (k, n) if w_layout == "kn" else (n, k)
    w = np.empty((layers, *shape), jnp.dtype(dtype))
    for layer in range(layers):
        w[layer] = rng.standard_normal(shape, np.float32)
    placed = to_host(tile_major(w) if w_layout == "tiles" else w)
    data = placed.data
    return w, data if backend == "sm90" else weight_operand(data, backend=backend)


def operands(gemm: Gemm, *, l2_bytes: float, backend: Backend, seed: int = 0) -> Operands:
    """Draw the inputs of a problem, unit normal, and place them."""
    layers = layers_for(gemm, l2_bytes)
    w, operand = _weights(gemm.k, gemm.n, gemm.w_layout, gemm.dtype, layers, seed, backend)
    rng = np.random.default_rng([seed, gemm.m, gemm.k])
    x = rng.standard_normal((gemm.m, gemm.k), np.float32).astype(jnp.dtype(gemm.dtype))
    return Operands(
        gemm=replace(gemm, layers=layers),
        x=x,
        w=w,
        x_device=jnp.asarray(x),
        w_operand=operand,
        backend=backend,
    )


def launcher(inputs: Operands, config: Config) -> Callable[[float], Launch]:
    """Compile the kernel; return `at(alpha)`, which returns `launch(i)` on layer i mod L.

    A launch does not wait for its result.
    """
    gemm, backend = inputs.gemm, inputs.backend
    assert gemm.layers is not None
    if backend == "reference":

        def run(x: jax.Array, w: jax.Array, scalars: jax.Array) -> jax.Array:
            return matmul(gemm, x, w, scalars[3])

    else:
        from pallas_kernels.gemm import sm90
        from pallas_kernels.mosaic import interpret_params

        kernel = sm90.build(
            gemm, config, interpret=interpret_params() if backend == "interpret" else None
        )

        def run(x: jax.Array, w: jax.Array, scalars: jax.Array) -> jax.Array:
            return kernel(x, host_ref(w), scalars)

    compiled = jax.jit(run)

    def at(alpha: float) -> Launch:
        plan = plan_launch(gemm, config, alpha=alpha, layer=0)
        fields = [plan.sym_strips, plan.sym_clusters, plan.active_clusters]
        scalars = [jnp.array([*fields, layer], jnp.int32) for layer in range(gemm.layers or 0)]

        def launch(number: int) -> jax.Array:
            out: jax.Array = compiled(
                inputs.x_device, inputs.w_operand, scalars[number % len(scalars)]
            )
            return out

        return launch

    return at


def wrong(inputs: Operands, out: Any, layer: int) -> str:
    """Say how a result is wrong; empty if every sampled element is within its derived bound.

    One random row of every 64 and one random column of every 64 are computed in float64, and no
    element at all may be NaN or infinite.
    """
    gemm = inputs.gemm
    if not bool(jnp.isfinite(out).all()):
        return "the result holds NaN or infinities"
    rng = np.random.default_rng([gemm.m, gemm.n, layer])
    rows, columns = (_one_of_each(rng, size) for size in (gemm.m, gemm.n))
    w = inputs.w[layer]
    w = w[:, columns] if gemm.w_layout == "kn" else w[columns].T
    found = check_gemm(np.asarray(out[rows][:, columns]), inputs.x[rows], w)
    if found.ok:
        return ""
    return (
        f"row {rows[found.row]}, column {columns[found.column]} is {found.got:.6g} where "
        f"{found.expected:.6g} is right: {found.worst_ratio:.3g} times its bound"
    )


def _one_of_each(rng: np.random.Generator, size: int) -> np.ndarray:
    starts = np.arange(0, size, _SAMPLE)
    return starts + rng.integers(0, np.minimum(_SAMPLE, size - starts))
