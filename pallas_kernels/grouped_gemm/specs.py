"""What is multiplied: the static description of one grouped GEMM, and the models that need it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal, get_args

import jax.numpy as jnp
import numpy as np

from pallas_kernels.counting import round_up
from pallas_kernels.hopper import INPUT_DTYPES

WLayout = Literal["kn", "nk"]
W_LAYOUTS: tuple[WLayout, ...] = get_args(WLayout)

ROW_MULTIPLE = 8  # rows of X, and where a tile of it may begin: the 128-byte swizzle repeats then
WIDTH_MULTIPLE = 64  # K and N: one 128-byte swizzled row of a two-byte type

_MAX_SIZE = 2**31 - 1  # the kernel counts in int32


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupedGemm:
    """O[rows of e] = X[rows of e] W[e] for every expert e, of one shape of the arrays.

    Which rows are whose is known at run time only. `layers` is the leading size of a stacked W, or
    None for a W of one layer.
    """

    t: int  # rows of X: tokens times experts for each token
    k: int
    n: int
    experts: int
    dtype: str = "bfloat16"  # of X and W
    out_dtype: str = "bfloat16"
    layers: int | None = None
    w_layout: WLayout = "kn"

    def __post_init__(self) -> None:
        for name, multiple in (("t", 1), ("k", WIDTH_MULTIPLE), ("n", WIDTH_MULTIPLE)):
            size = getattr(self, name)
            if not 0 < size <= _MAX_SIZE or size % multiple:
                raise ValueError(
                    f"{name}={size}: expected a multiple of {multiple} above 0 and below 2**31"
                )
        if self.experts < 1 or self.t * self.experts > _MAX_SIZE:
            raise ValueError(
                f"experts={self.experts}: expected a number above 0 that makes less than 2**31 "
                f"with t={self.t} rows"
            )
        if self.dtype not in INPUT_DTYPES:
            raise ValueError(f"dtype={self.dtype!r}: expected one of {', '.join(INPUT_DTYPES)}")
        if self.out_dtype not in (self.dtype, "float32"):
            raise ValueError(f"out_dtype={self.out_dtype!r}: expected {self.dtype} or float32")
        if self.layers is not None and self.layers < 1:
            raise ValueError(f"layers={self.layers}: expected a number from 1 up")
        if self.w_layout not in W_LAYOUTS:
            raise ValueError(
                f"w_layout={self.w_layout!r}: expected 'kn' for W[E, K, N] or 'nk' for W[E, N, K]"
            )

    @property
    def padded_rows(self) -> int:
        """Rows of X as the kernel reads it, rounded up."""
        return round_up(self.t, ROW_MULTIPLE)

    @property
    def w_shape(self) -> tuple[int, ...]:
        """The shape of W, with the layers if it is stacked."""
        matrix = (self.k, self.n) if self.w_layout == "kn" else (self.n, self.k)
        one = (self.experts, *matrix)
        return one if self.layers is None else (self.layers, *one)

    @property
    def in_itemsize(self) -> int:
        """Bytes of one element of X or W."""
        return np.dtype(jnp.dtype(self.dtype)).itemsize

    @property
    def out_itemsize(self) -> int:
        """Bytes of one element of O."""
        return np.dtype(jnp.dtype(self.out_dtype)).itemsize


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts:
    """The expert layers of a model: how many, how many each token takes, (K, N) of each GEMM."""

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
