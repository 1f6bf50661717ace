"""What is multiplied: the static description of one GEMM over quantised weights.

Weights are stored [N, K], K contiguous. int4 numbers are packed two to a byte, in blocks of
`PACK_BLOCK` along K: the low half of byte j of a block is number j, the high half number j + 64.
The two halves of the bytes of a block are then two contiguous pieces of K, and unpacking moves
nothing between threads.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import jax.numpy as jnp
import ml_dtypes
import numpy as np

from pallas_kernels.hopper import INPUT_DTYPES

Kind = Literal["int8", "float8_e4m3fn", "int4"]
KINDS: tuple[Kind, ...] = get_args(Kind)

SCALE_DTYPES = ("float32", "bfloat16", "float16")  # of offsets too

ROW_MULTIPLE = 8  # rows of X: what the 128-byte swizzle repeats after
K_MULTIPLE = 128  # columns of W: one swizzled row of bytes, or one block of int4
N_MULTIPLE = 64  # rows of W: one wgmma
GROUP_MULTIPLE = 32  # weights along K: two instructions of wgmma

PACK_BLOCK = 128  # int4 numbers that are packed together

_MAX_SIZE = 2**31 - 1  # the kernel counts in int32


def storage_dtype(kind: Kind) -> np.dtype[np.generic]:
    """Return the type of the stored array; int4 is packed into int8."""
    return np.dtype(ml_dtypes.float8_e4m3fn if kind == "float8_e4m3fn" else np.int8)


def bits(kind: Kind) -> int:
    """Return the bits of one weight.

    >>> bits("int4")
    4
    """
    return 4 if kind == "int4" else 8


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizedGemm:
    """O[m, n] = X[m, k] W[k, n] as the kernel sees it, with padding included.

    `group` is the number of weights along K that share a scale, or None for one scale a column.
    `offset_dtype` is the type of what is added to each scaled weight, a number for each scale; None
    for nothing.
    `layers` is the leading size of a stacked W, or None for a W of one layer.
    """

    m: int
    k: int
    n: int
    kind: Kind = "int8"
    group: int | None = None
    dtype: str = "bfloat16"  # of X
    out_dtype: str = "bfloat16"
    scale_dtype: str = "float32"
    offset_dtype: str | None = None
    layers: int | None = None

    def __post_init__(self) -> None:
        multiples = (("m", ROW_MULTIPLE), ("k", K_MULTIPLE), ("n", N_MULTIPLE))
        for name, multiple in multiples:
            size = getattr(self, name)
            if not 0 < size <= _MAX_SIZE or size % multiple:
                raise ValueError(
                    f"{name}={size}: expected a multiple of {multiple} above 0 and below 2**31"
                )
        check_kind(self.kind)
        check_group(self.kind, self.group)
        if self.k % (self.group or 1):
            raise ValueError(f"group={self.group}: expected a divisor of k={self.k}")
        if self.dtype not in INPUT_DTYPES:
            raise ValueError(f"dtype={self.dtype!r}: expected one of {', '.join(INPUT_DTYPES)}")
        if self.out_dtype not in (self.dtype, "float32"):
            raise ValueError(f"out_dtype={self.out_dtype!r}: expected {self.dtype} or float32")
        for name in ("scale_dtype", "offset_dtype"):
            dtype = getattr(self, name)
            if dtype not in SCALE_DTYPES and (name, dtype) != ("offset_dtype", None):
                raise ValueError(f"{name}={dtype!r}: expected one of {', '.join(SCALE_DTYPES)}")
        if self.layers is not None and self.layers < 1:
            raise ValueError(f"layers={self.layers}: expected a number from 1 up")

    @property
    def groups(self) -> int:
        """Scales of one column."""
        return self.k // (self.group or self.k)

    @property
    def group_size(self) -> int:
        """Weights along K that share a scale."""
        return self.group or self.k

    @property
    def w_shape(self) -> tuple[int, ...]:
        """The shape of the stored W, with the layers if it is stacked."""
        return self._stacked(self.n, self.k * bits(self.kind) // 8)

    @property
    def scales_shape(self) -> tuple[int, ...]:
        """The shape of the scales, and of the offsets if there are any."""
        return self._stacked(self.groups, self.n)

    @property
    def x_itemsize(self) -> int:
        """Bytes of one element of X."""
        return np.dtype(jnp.dtype(self.dtype)).itemsize

    @property
    def out_itemsize(self) -> int:
        """Bytes of one element of O."""
        return np.dtype(jnp.dtype(self.out_dtype)).itemsize

    @property
    def scale_itemsize(self) -> int:
        """Bytes of one scale."""
        return np.dtype(jnp.dtype(self.scale_dtype)).itemsize

    @property
    def offset_itemsize(self) -> int:
        """Bytes of one offset; 0 without offsets."""
        return np.dtype(jnp.dtype(self.offset_dtype)).itemsize if self.offset_dtype else 0

    def _stacked(self, *matrix: int) -> tuple[int, ...]:
        return matrix if self.layers is None else (self.layers, *matrix)


def check_kind(kind: object, name: str = "kind") -> None:
    """Return if there is such a kind of weights.

    Raises:
      ValueError: there is not.
    """
    if kind not in KINDS:
        raise ValueError(f"{name}={kind!r}: expected one of {', '.join(KINDS)}")


def check_group(kind: Kind, group: int | None) -> None:
    """Return if weights of `kind` may have groups of this size.

    Raises:
      ValueError: they may not.
    """
    if group is None:
        return
    if type(group) is not int or group < 1 or group % GROUP_MULTIPLE:
        raise ValueError(
            f"group={group!r}: expected None or a multiple of {GROUP_MULTIPLE} for kind={kind!r}"
        )
