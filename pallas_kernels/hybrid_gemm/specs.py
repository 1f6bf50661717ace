"""What is multiplied: the static description of one GEMM, and the shapes worth running it on.

Tests, tuner and benchmark share the lists at the end.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal, get_args

import jax.numpy as jnp
import numpy as np

from pallas_kernels.hopper import INPUT_DTYPES

WLayout = Literal["kn", "nk", "tiles"]
W_LAYOUTS: tuple[WLayout, ...] = get_args(WLayout)

ROW_MULTIPLE = 8  # rows of X: what the 128-byte swizzle repeats after
PACK_MULTIPLE = 64  # K and N of W: one 128-byte swizzled row of a two-byte type

_MAX_SIZE = 2**31 - 1  # the kernel counts in int32


@dataclass(frozen=True, slots=True, kw_only=True)
class Gemm:
    """O[m, n] = X[m, k] W[k, n], as the kernel sees it: packed, with padding included.

    `layers` is the leading size of a stacked W, or None for a W of one layer.
    """

    m: int
    k: int
    n: int
    dtype: str = "bfloat16"  # of X and W
    out_dtype: str = "bfloat16"
    layers: int | None = None
    w_layout: WLayout = "kn"

    def __post_init__(self) -> None:
        for name, multiple in (("m", ROW_MULTIPLE), ("k", PACK_MULTIPLE), ("n", PACK_MULTIPLE)):
            size = getattr(self, name)
            if not 0 < size <= _MAX_SIZE or size % multiple:
                raise ValueError(
                    f"{name}={size}: expected a multiple of {multiple} above 0 and below 2**31"
                )
        if self.dtype not in INPUT_DTYPES:
            raise ValueError(f"dtype={self.dtype!r}: expected one of {', '.join(INPUT_DTYPES)}")
        if self.out_dtype not in (self.dtype, "float32"):
            raise ValueError(f"out_dtype={self.out_dtype!r}: expected {self.dtype} or float32")
        if self.layers is not None and self.layers < 1:
            raise ValueError(f"layers={self.layers}: expected a number from 1 up")
        if self.w_layout not in W_LAYOUTS:
            raise ValueError(
                f"w_layout={self.w_layout!r}: expected 'kn' for W[K, N], 'nk' for W[N, K] or "
                f"'tiles' for W[N / 64, K / 64, 64, 64]"
            )

    @property
    def w_shape(self) -> tuple[int, ...]:
        """The shape of W, with the layers if it is stacked."""
        block = PACK_MULTIPLE
        matrix: tuple[int, ...] = {
            "kn": (self.k, self.n),
            "nk": (self.n, self.k),
            "tiles": (self.n // block, self.k // block, block, block),
        }[self.w_layout]
        return matrix if self.layers is None else (self.layers, *matrix)

    @property
    def in_itemsize(self) -> int:
        """Bytes of one element of X or W."""
        return np.dtype(jnp.dtype(self.dtype)).itemsize

    @property
    def out_itemsize(self) -> int:
        """Bytes of one element of O."""
        return np.dtype(jnp.dtype(self.out_dtype)).itemsize


MODEL_PROJECTIONS: Mapping[str, tuple[tuple[int, int], ...]] = MappingProxyType(
    {
        # (K, N) of: fused query-key-value, attention output, fused gate-up, down
        "llama-3.2-3b": ((3072, 5120), (3072, 3072), (3072, 16384), (8192, 3072)),
        "llama-3.1-8b": ((4096, 6144), (4096, 4096), (4096, 28672), (14336, 4096)),
        "llama-3.1-70b": ((8192, 10240), (8192, 8192), (8192, 57344), (28672, 8192)),
        "mixtral-8x7b": ((4096, 6144), (4096, 4096), (4096, 28672), (14336, 4096)),  # an expert
        "qwen3-30b-a3b": ((2048, 5120), (4096, 2048), (2048, 1536), (768, 2048)),  # an expert
        "c2cserve-fig4": ((4096, 16384),),  # the shape of the paper's Fig. 4 and 5
    }
)
"""Sizes of the projections in the models' published configurations."""

ROWS: tuple[int, ...] = (1, 8, 16, 64, 128, 256, 512, 1024, 2048, 4096, 10240)
"""Numbers of tokens, decode to long prefill."""
