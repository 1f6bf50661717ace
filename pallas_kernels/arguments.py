"""Checks of arguments that the ops share: backends, run-time scalars, layers, derivatives."""

from __future__ import annotations

import functools
from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp
import numpy as np

from pallas_kernels.capability import Backend, device, missing, require

Choice = Literal["auto", "sm90", "interpret", "reference"]
Number = Any  # a Python or NumPy number, or a scalar array, concrete or traced

INTERPRETED_SMS = 4  # interpret mode takes time for each CTA
HOPPER_SMS = 132  # what a backend without SMs checks SM arguments against


def resolve_backend(backend: str) -> Backend:
    """Return the backend to run: "auto" is "sm90" where it can run, else "reference".

    Raises:
      ValueError: `backend` is not one of `Choice`.
      KernelUnavailable: the default device cannot run it; names the device and what is missing.
    """
    if backend not in get_args(Choice):
        expected = ", ".join(get_args(Choice))
        raise ValueError(f"backend={backend!r}: expected one of {expected}")
    here = device()
    if backend == "auto":
        return "reference" if missing("sm90", here) else "sm90"
    chosen: Backend = backend  # type: ignore[assignment]
    require(chosen, here)
    return chosen


def sm_count(backend: Backend, cluster: int = 1) -> int:
    """Return the SMs of the device; without a GPU, a number to check the arguments against."""
    if backend == "interpret":
        return max(INTERPRETED_SMS, 2 * cluster)
    first: Any = jax.devices()[0]
    return int(first.core_count) if first.platform == "gpu" else HOPPER_SMS


def concrete(name: str, value: Number, kind: type[int] | type[float]) -> Any:
    """Return the value as a Python number of `kind`, or None if it is traced.

    Raises:
      ValueError: it is no scalar, or no number of this kind.
    """
    if np.ndim(value) != 0:
        raise ValueError(f"{name} of shape {np.shape(value)}: expected a scalar")
    if isinstance(value, jax.core.Tracer):
        return None
    number = np.asarray(value)
    expected = "iu" if kind is int else "iuf"
    if number.dtype.kind not in expected and str(number.dtype) not in ("bfloat16", "float16"):
        what = "a whole number" if kind is int else "a number"
        raise ValueError(f"{name}={value!r}: expected {what}")
    return kind(number)


def layer_index(layer: Number | None, layers: int | None) -> Any:
    """Return which matrix of a stack: a Python integer, or a traced int32 clamped to the stack.

    Args:
      layer: the caller's argument; None for weights that are no stack, and only for them.
      layers: the size of the stack, or None.

    Raises:
      ValueError: it is missing, superfluous or outside the stack.
    """
    if layers is None:
        if layer is not None:
            raise ValueError(f"layer={layer}: expected None, since w is one matrix and no stack")
        return 0
    if layer is None:
        raise ValueError(f"layer=None: expected a number from 0 to {layers - 1}, w is a stack")
    known = concrete("layer", layer, int)
    if known is None:
        return jnp.clip(jnp.asarray(layer, jnp.int32), 0, layers - 1)
    if not 0 <= known < layers:
        raise ValueError(f"layer={known}: expected a number from 0 to {layers - 1}")
    return known


def launch_scalars(fields: tuple[Number, ...]) -> jax.Array | np.ndarray:
    """Return the int32 vector that a kernel reads its run-time scalars from."""
    traced = any(isinstance(f, jax.Array) for f in fields)
    return jnp.stack(fields) if traced else np.array(fields, np.int32)


def without_derivative(op: str, *arrays: Any) -> tuple[Any, ...]:
    """Return `arrays`; differentiating what follows raises `NotImplementedError` naming `op`."""
    result: tuple[Any, ...] = _refusing_derivatives(op)(*arrays)
    return result


@functools.cache
def _refusing_derivatives(op: str) -> Any:
    @jax.custom_jvp
    def same(*arrays: Any) -> tuple[Any, ...]:
        return arrays

    @same.defjvp
    def _refuse(primals: object, tangents: object) -> Any:
        raise NotImplementedError(
            f"{op} has no derivative: it serves weights that are read, not trained. "
            "Differentiate the same computation in jax.numpy, or stop the gradient with "
            "jax.lax.stop_gradient."
        )

    return same
