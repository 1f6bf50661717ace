"""Programs that are compiled ahead of time: a function of arrays, its arguments, the code's marks.

Every op lists its configurations in use as `Program`s. The ahead-of-time checks, the tuner and the
kernel repository work on this list and need to know nothing else of an op.
"""

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
    host: bool = False  # lives in pinned host memory

    @property
    def nbytes(self) -> int:
        """Bytes of the values; two int4 numbers share one."""
        import jax.numpy as jnp

        dtype = jnp.dtype(self.dtype)
        bits = 4 if self.dtype in ("int4", "uint4") else 8 * np.dtype(dtype).itemsize
        return math.prod(self.shape) * bits // 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """One compiled thing: an op with its shapes and its compile-time choices.

    `function` takes arrays only, in the order of `arguments`; everything else is closed over. It
    may run XLA operations around the kernel (padding, cutting), never on a host argument.
    """

    op: str  # the op's package, e.g. "gemm"
    name: str  # unique within the op; says shape and choices
    function: Callable[..., Any]
    arguments: tuple[Argument, ...]
    shared_bytes: int  # shared memory of one CTA, as the op predicts it
    opcodes: frozenset[str]  # instructions that must be in the machine code, e.g. {"HGMMA"}
    absent: frozenset[str] = frozenset()  # instructions that must not
    multicast: bool = False  # whether TMA loads are multicast; never, if not
    kernels: int = 1  # kernels launched
    key: tuple[tuple[str, str], ...] = field(default=())  # what a repository files it under
    donated: tuple[int, ...] = ()  # numbers of the arguments whose memory the results may take
    source: str = ""  # version of what `function` calls outside this package

    @property
    def host_bytes(self) -> int:
        """Bytes of the arguments that stay in host memory."""
        return sum(a.nbytes for a in self.arguments if a.host)
