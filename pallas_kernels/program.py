"""Programs for ahead-of-time compilation."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np


@dataclass(frozen=True, slots=True, kw_only=True)
class Argument:
    """One array argument of a program."""

    shape: tuple[int, ...]
    dtype: str  # jax's name, e.g. "bfloat16", "int4", "float8_e4m3fn"
    host: bool = False  # in pinned host memory

    @property
    def nbytes(self) -> int:
        """Bytes of the values; two int4 numbers share one."""
        import jax.numpy as jnp

        dtype = jnp.dtype(self.dtype)
        bits = 4 if self.dtype in ("int4", "uint4") else 8 * np.dtype(dtype).itemsize
        return math.prod(self.shape) * bits // 8


# Ahead-of-time checks and the kernel repository work on the ops' lists of these alone.
@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A unit of compilation: an op with shapes and compile-time choices.

    `function` takes the arrays of `arguments`. It never runs XLA operations on a host argument.
    """

    op: str  # the op's package, e.g. "gemm"
    name: str  # unique within the op; contains shape and choices
    function: Callable[..., Any]
    arguments: tuple[Argument, ...]
    shared_bytes: int  # shared memory of one CTA, as the op predicts it
    opcodes: frozenset[str]  # instructions that must be in the machine code, e.g. {"HGMMA"}
    absent: frozenset[str] = frozenset()  # instructions that must not be in it
    multicast: bool = False  # True if some TMA loads are multicast, False if none is
    kernels: int = 1  # kernels launched
    key: tuple[tuple[str, str], ...] = field(default=())  # fields of its key in a repository
    donated: tuple[int, ...] = ()  # indices of the arguments whose memory the results may reuse
    source: str = ""  # version of the code outside this package that `function` calls

    @property
    def host_bytes(self) -> int:
        """Bytes of the arguments that stay in host memory."""
        return sum(a.nbytes for a in self.arguments if a.host)
