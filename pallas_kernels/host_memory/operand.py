"""Weight arrays in host memory as operands of kernels."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import batching, mlir

from pallas_kernels.capability import Backend
from pallas_kernels.host_memory.errors import HostMemoryError

__all__ = ["Backend", "host_ref", "in_host_memory", "refuse_constant", "weight_operand"]

_UNLIKE_NUMPY = ("int4", "uint4", "int2", "uint2")  # jax packs several into a byte

_host_ref_p: Any = Primitive("host_ref")  # its methods are untyped
_host_ref_p.def_abstract_eval(lambda a: a.update(memory_space=jax.memory.Space.Device))
_host_ref_p.def_impl(lambda w: w)
mlir.register_lowering(_host_ref_p, lambda _context, w: [w])
_batched: Any = batching.defvectorized  # untyped
_batched(_host_ref_p)


def in_host_memory(w: jax.Array) -> bool:
    """Return whether `w`, concrete or traced, is in host memory."""
    return bool(jax.typeof(w).memory_space == jax.memory.Space.Host)


def refuse_constant(w: jax.Array) -> None:
    """Raise if `w` would become a traced program's constant, outside host memory.

    Raises:
      HostMemoryError: a concrete `w` in host memory, under tracing.
    """
    if isinstance(w, jax.core.Tracer) or not in_host_memory(w):
        return
    if isinstance(_host_ref_p.bind(w), jax.core.Tracer):
        sizes = "x".join(map(str, w.shape))
        raise HostMemoryError(
            f"w ({sizes} {w.dtype}) in host memory is closed over by a jitted function and would "
            "be a constant of its program, in device memory: pass it as an argument of the jitted "
            "function."
        )


def host_ref(w: jax.Array) -> jax.Array:
    """Change the traced type of a host array to device space, without a copy, under `jit`.

    Elsewhere it returns `w`.

    The result is for kernels alone: XLA on a GPU would read it as device memory.

    Raises:
      HostMemoryError: under `jit`, `w` from outside.
    """
    if not in_host_memory(w):
        return w
    refuse_constant(w)
    retyped: jax.Array = _host_ref_p.bind(w)
    return retyped


def weight_operand(w: Any, *, backend: Backend) -> jax.Array:
    """Return the weights `w` as an operand for `backend`.

    "sm90" reads host memory; others get a copy in device memory, on a CPU the same bytes.

    Raises:
      HostMemoryError: under `jit`, `w` from outside; or a traced `w` for "interpret".
    """
    w = getattr(w, "data", w)
    refuse_constant(w)
    if backend == "sm90" or not in_host_memory(w):
        return host_ref(w)
    target: Any = jax.memory.Space.Device
    if not isinstance(w, jax.core.Tracer):
        target = w.sharding.with_memory_kind("device")
        if _is_cpu(w.sharding) and str(w.dtype) not in _UNLIKE_NUMPY:
            # jax copies from one memory of a CPU to another, but takes NumPy's view as it is.
            w = np.asarray(w)
    elif backend == "interpret":
        raise HostMemoryError(
            "w in host memory is traced, and backend='interpret' cannot run inside a jit with "
            "arguments in host memory: expected w in device memory. Move it before the jit: "
            "weight_operand(w, backend='interpret')."
        )
    moved: jax.Array = jax.device_put(w, target)
    return moved


def _is_cpu(sharding: Any) -> bool:
    devices: Any = sharding.device_set
    return len(devices) == 1 and all(device.platform == "cpu" for device in devices)
