"""Static description of a GEMM."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal, get_args

import ml_dtypes
import numpy as np

from pallas_kernels.hopper import INPUT_DTYPES, expect
from pallas_kernels.integer_math import round_up

WLayout = Literal["kn", "nk", "tiles"]
W_LAYOUTS: tuple[WLayout, ...] = get_args(WLayout)

Kind = Literal["int8", "float8_e4m3fn", "int4"]
KINDS: tuple[Kind, ...] = get_args(Kind)

SCALE_DTYPES = ("float32", "bfloat16", "float16")  # of offsets too

ROW_MULTIPLE = 8  # rows of X, and where a tile of it may begin: the 128-byte swizzle repeats then
PACK_MULTIPLE = 64  # K and N of W: one 128-byte swizzled row of a two-byte type
K_MULTIPLE = 128  # K of quantised W: one swizzled row of bytes, or one block of int4
N_MULTIPLE = 64  # N of quantised W: one wgmma
GROUP_MULTIPLE = 32  # weights along K: two instructions of wgmma

PACK_BLOCK = 128  # int4 numbers that are packed together

MAX_SIZE = 2**31 - 1  # the kernel counts in int32


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantised:
    """Storage of quantised weights.

    `group` weights along K share a scale; None: a scale per column. `offset_dtype`: of an offset
    per scale; None: none.

    Stored [N, K], K contiguous. int4: blocks of `PACK_BLOCK` along K; byte j has number j in its
    low half, j + 64 in its high half.
    """

    kind: Kind = "int8"
    group: int | None = None
    scale_dtype: str = "float32"
    offset_dtype: str | None = None

    def __post_init__(self) -> None:
        check_kind(self.kind)
        check_group(self.kind, self.group)
        for name in ("scale_dtype", "offset_dtype"):
            dtype = getattr(self, name)
            is_valid = dtype in SCALE_DTYPES or (name, dtype) == ("offset_dtype", None)
            expect(is_valid, name, dtype, f"one of {', '.join(SCALE_DTYPES)}")

    @property
    def storage_dtype(self) -> np.dtype[np.generic]:
        """Type of the stored array; int4 is packed into int8."""
        return storage_dtype(self.kind)

    @property
    def scale_itemsize(self) -> int:
        """Bytes of one scale."""
        return itemsize(self.scale_dtype)

    @property
    def offset_itemsize(self) -> int:
        """Bytes of one offset; 0 without offsets."""
        return itemsize(self.offset_dtype) if self.offset_dtype else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Gemm:
    """O[m, n] = X[m, k] W[k, n] as the kernel computes it: packed, with padding.

    With `experts`: O[rows of e] = X[rows of e] W[e] for every expert e. `m` is then the caller's
    rows.

    `layers` is the leading size of a stacked W, or None.
    """

    m: int
    k: int
    n: int
    dtype: str = "bfloat16"  # of X, and of W that is not quantised
    out_dtype: str = "bfloat16"
    layers: int | None = None
    w_layout: WLayout = "kn"
    quantised: Quantised | None = None
    experts: int | None = None

    def __post_init__(self) -> None:
        multiples = (PACK_MULTIPLE, PACK_MULTIPLE)
        if self.quantised is not None:
            multiples = (K_MULTIPLE, N_MULTIPLE)
        row_multiple = ROW_MULTIPLE if self.experts is None else 1
        for name, multiple in zip("mkn", (row_multiple, *multiples), strict=True):
            size = getattr(self, name)
            allowed = f"a multiple of {multiple} above 0 and below 2**31"
            expect(0 < size <= MAX_SIZE and size % multiple == 0, name, size, allowed)
        check_layout(self.w_layout)
        plain, layers, experts = self.quantised is None, self.layers, self.experts
        for name, holds, allowed in (
            ("dtype", self.dtype in INPUT_DTYPES, f"one of {', '.join(INPUT_DTYPES)}"),
            ("out_dtype", self.out_dtype in (self.dtype, "float32"), f"{self.dtype} or float32"),
            ("layers", layers is None or layers >= 1, "a number from 1 up"),
            (
                "experts",
                experts is None or 1 <= experts <= MAX_SIZE // self.m,
                f"a number above 0 that makes less than 2**31 with m={self.m} rows",
            ),
            ("w_layout", plain or self.w_layout == "nk", "'nk' of quantised weights"),
        ):
            expect(bool(holds), name, getattr(self, name), allowed)
        divides = self.k % self.group_size == 0
        expect(divides, "group", self.group_size, f"a divisor of k={self.k}")

    @property
    def x_rows(self) -> int:
        """Rows of X in the kernel, rounded up."""
        return round_up(self.m, ROW_MULTIPLE)

    @property
    def rows_each(self) -> int:
        """Rows of a matrix; with experts, of one with many under balanced routing."""
        if self.experts is None:
            return self.m
        mean = self.m / self.experts
        return min(math.ceil(mean + 2 * math.sqrt(mean)), self.m) + ROW_MULTIPLE - 1

    @property
    def groups(self) -> int:
        """Scales per column; 1 for unquantised weights."""
        return self.k // self.group_size

    @property
    def group_size(self) -> int:
        """Number of weights along K that share a scale."""
        return self.k if self.quantised is None else self.quantised.group or self.k

    @property
    def w_bits(self) -> int:
        """Bits of one weight."""
        return 8 * self.in_itemsize if self.quantised is None else bits(self.quantised.kind)

    @property
    def w_shape(self) -> tuple[int, ...]:
        """Shape of the stored W, with any experts and layers."""
        if self.quantised is not None:
            return self._stacked(self.n, self.k * self.w_bits // 8)
        block = PACK_MULTIPLE
        shapes: dict[str, tuple[int, ...]] = {
            "kn": (self.k, self.n),
            "nk": (self.n, self.k),
            "tiles": (self.n // block, self.k // block, block, block),
        }
        return self._stacked(*shapes[self.w_layout])

    @property
    def w_dtype(self) -> str:
        """Type of the stored W."""
        return self.dtype if self.quantised is None else str(self.quantised.storage_dtype)

    @property
    def scales_shape(self) -> tuple[int, ...]:
        """Shape of the scales, and of any offsets."""
        return self._stacked(self.groups, self.n)

    @property
    def in_itemsize(self) -> int:
        """Bytes of one element of X."""
        return itemsize(self.dtype)

    @property
    def out_itemsize(self) -> int:
        """Bytes of one element of O."""
        return itemsize(self.out_dtype)

    @property
    def transposed(self) -> bool:
        """True: the tensor cores compute O^T = W^T X^T, for weights in registers."""
        return self.quantised is not None

    def _stacked(self, *matrix: int) -> tuple[int, ...]:
        sizes = (self.layers, self.experts)
        return (*(size for size in sizes if size is not None), *matrix)


def itemsize(dtype: str) -> int:
    """Return one element's bytes.

    >>> itemsize("bfloat16")
    2
    """
    return np.dtype(getattr(ml_dtypes, dtype, dtype)).itemsize


def storage_dtype(kind: Kind) -> np.dtype[np.generic]:
    """Return the stored array's type; int4 is packed into int8."""
    return np.dtype(ml_dtypes.float8_e4m3fn if kind == "float8_e4m3fn" else np.int8)


def bits(kind: Kind) -> int:
    """Return one weight's bits.

    >>> bits("int4")
    4
    """
    return 4 if kind == "int4" else 8


def check_layout(w_layout: object) -> None:
    """Check the name of a layout of weights.

    Raises:
      ValueError: the layout is unknown.
    """
    allowed = "'kn' for W[K, N], 'nk' for W[N, K] or 'tiles' for W[N / 64, K / 64, 64, 64]"
    expect(w_layout in W_LAYOUTS, "w_layout", w_layout, allowed)


def check_kind(kind: object, name: str = "kind") -> None:
    """Check the name of a kind of quantised weights."""
    expect(kind in KINDS, name, kind, f"one of {', '.join(KINDS)}")


def check_group(kind: Kind, group: int | None) -> None:
    """Check the size of groups of weights of `kind`."""
    fits = group is None or (type(group) is int and group >= 1 and group % GROUP_MULTIPLE == 0)
    expect(fits, "group", group, f"None or a multiple of {GROUP_MULTIPLE} for kind={kind!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts:
    """Expert layers: experts, experts per token, GEMMs' (K, N)."""

    experts: int
    per_token: int
    projections: tuple[tuple[int, int], ...]  # fused gate-up, down


MODEL_EXPERTS: Mapping[str, Experts] = MappingProxyType(
    {
        "mixtral-8x7b": Experts(experts=8, per_token=2, projections=((4096, 28672), (14336, 4096))),
        "qwen3-30b-a3b": Experts(experts=128, per_token=8, projections=((2048, 1536), (768, 2048))),
    }
)
"""Sizes of the expert layers in the models' published configurations."""
