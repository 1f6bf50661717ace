"""How a weight array in host memory becomes an operand of the kernel, or of the reference."""

from __future__ import annotations

from typing import Any

import jax
from jax.extend.core import Primitive
from jax.interpreters import mlir

_operand_p: Any = Primitive("host_operand")  # its methods are untyped
_operand_p.def_abstract_eval(lambda a: a.update(memory_space=jax.memory.Space.Device))
_operand_p.def_impl(lambda w: w)
mlir.register_lowering(_operand_p, lambda _context, w: [w])


def in_host_memory(w: jax.Array) -> bool:
    """Whether `w`, concrete or traced, lives in host memory as jax's types see it."""
    return bool(jax.typeof(w).memory_space == jax.memory.Space.Host)


def kernel_operand(w: jax.Array) -> jax.Array:
    """Change the traced type of a host array to device space and nothing else: no copy.

    Pallas refuses operands typed as host memory, though the GPU can read them. The result must go
    straight into a kernel; an XLA operation on it would read host memory as device memory. Has an
    effect only under `jit`.
    """
    if not in_host_memory(w):
        return w
    retyped: jax.Array = _operand_p.bind(w)
    return retyped


def device_copy(w: jax.Array, *, backend: str) -> jax.Array:
    """Return `w` in device memory, copied if it is in host memory, for backends that need it so.

    Raises:
      ValueError: `w` is traced, in host memory, and `backend` is "interpret": jax cannot lower an
        interpreted kernel in a function with host arguments.
    """
    if not in_host_memory(w):
        return w
    if isinstance(w, jax.core.Tracer) and backend == "interpret":
        raise ValueError(
            "w: in host memory and traced, expected device memory for backend='interpret'. "
            "Move it before the jit: jax.device_put(w, jax.memory.Space.Device)."
        )
    target: Any = jax.memory.Space.Device
    if not isinstance(w, jax.core.Tracer):
        target = w.sharding.with_memory_kind("device")
    copied: jax.Array = jax.device_put(w, target)
    return copied
