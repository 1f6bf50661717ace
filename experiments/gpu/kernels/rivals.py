"""Rivals of hybrid_gemm: weights copied to device memory first, or always there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from experiments.gpu import Context
from experiments.gpu.cases import Place
from experiments.gpu.kernels import operands
from pallas_kernels.host_memory import HostArray

PIECES = 8
"""Pieces of the columns that `staged_overlapped` copies and multiplies in turn."""


@jax.jit
def matmul(x: jax.Array, w: jax.Array) -> jax.Array:
    """Multiply with XLA, accumulating in float32."""
    return jnp.matmul(x, w, preferred_element_type=jnp.float32).astype(x.dtype)


def resident(m: int, k: int, n: int, context: Context) -> Callable[[int], Any]:
    """Return launches that multiply by weights that are always in device memory."""
    x, layers = activations_and_layers(m, k, n, context, "device")
    return lambda number: matmul(x, layers[number % len(layers)])


def staged_serial(m: int, k: int, n: int, context: Context) -> Callable[[int], Any]:
    """Return launches that copy all weights to device memory, wait, multiply and wait.

    Waiting keeps a launch's copy from overlapping the product of the launch before it.
    """
    x, layers = activations_and_layers(m, k, n, context, "host")

    def launch(number: int) -> Any:
        w = layers[number % len(layers)].to_device().block_until_ready()
        return matmul(x, w).block_until_ready()

    return launch


def staged_overlapped(m: int, k: int, n: int, context: Context) -> Callable[[int], Any]:
    """Return launches that copy weights piece by piece, multiplying each during the next copy.

    Launches also overlap one another, as layers of a model would, and the pieces of the result are
    not joined: both favour this rival.
    """
    x = operands.activations(m, k, context)
    count = operands.copies(2 * k * n, context)
    layers = operands.pieces(k, n, count, PIECES, context.seed)
    operands.ready([x, *(piece for layer in layers for piece in layer)])

    def launch(number: int) -> list[Any]:
        return [matmul(x, piece.to_device()) for piece in layers[number % count]]

    return launch


RIVALS: dict[str, Callable[[int, int, int, Context], Callable[[int], Any]]] = {
    "staged_overlapped": staged_overlapped,
    "staged_serial": staged_serial,
    "resident": resident,
}


def activations_and_layers(
    m: int, k: int, n: int, context: Context, place: Place
) -> tuple[jax.Array, Sequence[Any]]:
    """Return x and separate weight matrices in `place`; XLA would copy a layer out of a stack."""
    x = operands.activations(m, k, context)
    count = operands.copies(2 * k * n, context)
    if place == "device":
        stack = operands.weights(k, n, count, "device", context.seed)
        assert isinstance(stack, jax.Array)
        layers: list[Any] = [stack[i] for i in range(count)]
    else:
        layers = [piece[0] for piece in operands.pieces(k, n, count, 1, context.seed)]
        assert all(isinstance(layer, HostArray) for layer in layers)
    operands.ready([x, *layers])
    return x, layers
