"""Inputs of the measurements: several copies of random weights in host or device memory.

The copies are several times the L2 together. Launches use them in turn, so that no cache serves a
launch data that an earlier one has read.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from experiments.gpu import Context, wait
from experiments.gpu.cases import Place
from pallas_kernels import arguments
from pallas_kernels.gemm import Gemm, WLayout
from pallas_kernels.host_memory import HostArray, to_host, weight_operand

COLD_BYTES = 256 * 10**6
MOST_COPIES = 64


def copies(nbytes: int, context: Context) -> int:
    """Return the number of copies of weights of `nbytes` that keep caches cold; at least two."""
    if context.scale == "tiny":
        return 2
    return max(2, min(MOST_COPIES, math.ceil(COLD_BYTES / nbytes)))


def activations(m: int, k: int, context: Context, dtype: str = "bfloat16") -> jax.Array:
    """Return unit normal activations [m, k] in device memory."""
    x: jax.Array = _normal(context.seed + m)((m, k), dtype, 1.0)
    return x


@functools.lru_cache(maxsize=1)
def weights(
    k: int,
    n: int,
    count: int,
    place: Place,
    seed: int,
    dtype: str = "bfloat16",
    w_layout: WLayout = "kn",
) -> HostArray | jax.Array:
    """Return a stack [count, k, n] whose products with unit normal rows are unit normal.

    `w_layout` may order k and n otherwise. The last stack is cached for neighbouring cases.
    """
    shape = Gemm(m=8, k=k, n=n, layers=count, w_layout=w_layout).w_shape
    stack: jax.Array = _normal(seed)(shape, dtype, k**-0.5)
    if place == "device":
        return stack
    placed: HostArray = to_host(stack)
    wait(placed.data)
    return placed


@functools.lru_cache(maxsize=1)
def pieces(k: int, n: int, count: int, parts: int, seed: int) -> tuple[tuple[HostArray, ...], ...]:
    """Return `count` weight matrices, each split by columns into `parts` arrays in host memory.

    Each array is contiguous, as a program that copies piece by piece would store it.
    """
    draw = _normal(seed)
    return tuple(
        tuple(to_host(draw((k, n // parts), "bfloat16", k**-0.5)) for _ in range(parts))
        for _ in range(count)
    )


def operand(w: HostArray | jax.Array, context: Context) -> jax.Array:
    """Return `w` as a kernel's operand, to be prepared before time counts."""
    return weight_operand(w, backend=context.backend)


def interpret_settings(context: Context) -> Any:
    """Return the settings of interpret mode, or None to compile for the GPU."""
    return arguments.interpret_settings("sm90" if context.backend == "sm90" else "interpret")


def sms(context: Context) -> int:
    """Return the number of SMs of the device; 4 in a dry run."""
    first: Any = jax.devices()[0]
    return int(first.core_count) if context.backend == "sm90" else 4


def ready(arrays: Sequence[Any]) -> None:
    """Wait until the arrays are in their memories."""
    wait([a.data if isinstance(a, HostArray) else a for a in arrays])


def _normal(seed: int) -> Any:
    """Return a function that draws new normal numbers with each call."""
    key = jax.random.key(seed)

    def draw(shape: tuple[int, ...], dtype: str, scale: float) -> jax.Array:
        nonlocal key
        key, used = jax.random.split(key)
        drawn: jax.Array = _scaled_normal(used, shape, dtype, scale)
        return drawn

    return draw


@functools.partial(jax.jit, static_argnames=("shape", "dtype", "scale"))
def _scaled_normal(key: jax.Array, shape: tuple[int, ...], dtype: str, scale: float) -> jax.Array:
    """Draw in batches of rows, so that no float32 copy of the whole is needed."""

    def row(one: jax.Array) -> jax.Array:
        values: jax.Array = jax.random.normal(one, shape[-1:], jnp.float32) * scale
        return values.astype(dtype)

    rows = math.prod(shape[:-1])
    drawn: jax.Array = jax.lax.map(row, jax.random.split(key, rows), batch_size=4096)
    return drawn.reshape(shape)
