"""Checks of arguments that the ops share."""

from __future__ import annotations

import functools
from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp
import numpy as np

from pallas_kernels.capability import Backend, device, missing, require
from pallas_kernels.hopper import CLUSTERS, HOPPER_SMS, INPUT_DTYPES, expect
from pallas_kernels.host_memory import in_host_memory, refuse_constant, weight_operand
from pallas_kernels.integer_math import div

Choice = Literal["auto", "sm90", "interpret", "reference"]
Number = Any  # a Python or NumPy number, or a scalar array, concrete or traced

INTERPRETED_SMS = 4  # interpret mode takes time for each CTA


def resolve_backend(backend: str) -> Backend:
    """Resolve "auto": "sm90" if the device can run it, else "reference".

    Raises:
      ValueError: not a `Choice`.
      KernelUnavailable: not on the default device.
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
    """Return the number of SMs of the device, an assumed one without a GPU."""
    if backend == "interpret":
        return max(INTERPRETED_SMS, 2 * cluster)
    first: Any = jax.devices()[0]
    return int(first.core_count) if first.platform == "gpu" else HOPPER_SMS


def concrete(name: str, value: Number, kind: type[int] | type[float]) -> Any:
    """Return the value as a number, or None if traced."""
    if np.ndim(value) != 0:
        raise ValueError(f"{name} of shape {np.shape(value)}: expected a scalar")
    if isinstance(value, jax.core.Tracer):
        return None
    number = np.asarray(value)
    expected = "iu" if kind is int else "iuf"
    if number.dtype.kind not in expected and str(number.dtype) not in INPUT_DTYPES:
        type_name = "a whole number" if kind is int else "a number"
        raise ValueError(f"{name}={value!r}: expected {type_name}")
    return kind(number)


def layer_index(layer: Number | None, layers: int | None) -> Any:
    """Return the index into a stack: a Python integer, or a clamped traced int32."""
    if layers is None:
        if layer is not None:
            raise ValueError(f"layer={layer}: expected None, since w is one matrix and no stack")
        return 0
    if layer is None:
        raise ValueError(f"layer=None: expected a number from 0 to {layers - 1}, w is a stack")
    number = concrete("layer", layer, int)
    if number is None:
        return jnp.clip(jnp.asarray(layer, jnp.int32), 0, layers - 1)
    if not 0 <= number < layers:
        raise ValueError(f"layer={number}: expected a number from 0 to {layers - 1}")
    return number


def active_clusters(sm_limit: Number | None, *, cluster: int, sm_count: int) -> Any:
    """Count working clusters: a Python integer, or a traced int32 in range.

    Args:
      sm_limit: None for all SMs.

    Raises:
      ValueError: `sm_limit` outside [cluster, sm_count].
    """
    clusters = sm_count // cluster
    if sm_limit is None:
        return clusters
    limit = concrete("sm_limit", sm_limit, int)
    if limit is None:
        return jnp.clip(div(jnp.asarray(sm_limit, jnp.int32), cluster), 1, clusters)
    if not cluster <= limit <= sm_count:
        raise ValueError(f"sm_limit={limit}: expected from cluster={cluster} to {sm_count} SMs")
    return limit // cluster


def check_activations(
    x: Any, k: int, out_dtype: Any, *, w_dtype: Any = None, rows: str = "M"
) -> tuple[int, str]:
    """Return x's rows and the result's dtype."""
    if not isinstance(x, jax.Array | np.ndarray) or x.ndim != 2:
        shape = getattr(x, "shape", type(x).__name__)
        raise ValueError(f"x: got {shape}, expected an array [{rows}, K]")
    if isinstance(x, jax.Array) and in_host_memory(x):
        raise ValueError("x in host memory: expected device memory; only w may stay in the host's")
    if x.shape[0] < 1 or x.shape[1] != k:
        raise ValueError(
            f"x of shape {x.shape[0]}x{x.shape[1]}: expected [{rows} >= 1, K={k}] as in w"
        )
    if str(x.dtype) not in INPUT_DTYPES:
        raise ValueError(f"x of dtype {x.dtype}: expected one of {', '.join(INPUT_DTYPES)}")
    if w_dtype is not None and x.dtype != w_dtype:
        raise ValueError(f"w of dtype {w_dtype}: expected {x.dtype} as in x")
    x_dtype = str(x.dtype)
    result = x_dtype if out_dtype is None else dtype_name("out_dtype", out_dtype)
    if result not in (x_dtype, "float32"):
        raise ValueError(f"out_dtype={result}: expected {x_dtype} or float32")
    return int(x.shape[0]), result


def dtype_name(name: str, dtype: Any) -> str:
    """Return a dtype's name, from any form."""
    try:
        return str(jnp.dtype(dtype))
    except TypeError:
        raise ValueError(f"{name}={dtype!r}: expected a type, such as 'float32'") from None


def interpret_settings(backend: Backend) -> Any:
    """Return interpret mode's settings, or None."""
    if backend != "interpret":
        return None
    from pallas_kernels.mosaic import interpret_params

    return interpret_params()


def check_cluster(cluster: Any) -> None:
    """Check that a cluster is launchable; None: chosen."""
    if cluster is not None and (type(cluster) is not int or cluster not in CLUSTERS):
        raise ValueError(f"cluster={cluster!r}: expected 1, 2, 4 or 8, or None to choose it")


def operand(array: Any, backend: Backend) -> jax.Array:
    """Return stored weights as an array for the backend; "sm90" reads them in place.

    Raises:
      ValueError: a NumPy array for "sm90" (jax would copy it).
      HostMemoryError: a jitted function closes over weights in host memory.
    """
    if isinstance(array, np.ndarray):
        expect(
            backend != "sm90", "weights", "a NumPy array",
            "a HostArray (place it once with to_host) or a jax array",
        )  # fmt: skip
        array = jnp.asarray(array)
    refuse_constant(array)
    return array if backend == "sm90" else weight_operand(array, backend=backend)


def launch_scalars(fields: tuple[Number, ...]) -> jax.Array | np.ndarray:
    """Return the int32 vector of a kernel's run-time scalars."""
    traced = any(isinstance(f, jax.Array) for f in fields)
    return jnp.stack(fields) if traced else np.array(fields, np.int32)


def without_derivative(op: str, *arrays: Any) -> tuple[Any, ...]:
    """Return `arrays`, whose differentiation raises `NotImplementedError` with `op`."""
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
