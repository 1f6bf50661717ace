"""Static description of one attention call for the kernels."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pallas_kernels.hopper import INPUT_DTYPES

HEAD_DIMS = (64, 128)
"""Sizes of a head that the kernels take: whole 128-byte swizzled rows whose tiles fit."""

ROW_MULTIPLE = 8  # rows of a tile that the 128-byte swizzle repeats after

GROUP_ROWS = 64  # rows of one wgmma: most query heads that decode packs on one KV head

PAGE_MULTIPLE = 16

UNBOUNDED = 1 << 30
"""A window that no position reaches; positions and offsets stay below it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prefill:
    """q[batch, queries, heads, dim] over k, v[batch, keys, kv_heads, dim], with padding."""

    batch: int
    queries: int
    keys: int
    heads: int
    kv_heads: int
    dim: int
    causal: bool = True
    dtype: str = "bfloat16"

    def __post_init__(self) -> None:
        check_kernel_sizes(self.dim, self.dtype, self.dtype)
        for name in ("queries", "keys"):
            size = getattr(self, name)
            if size < 1 or size % ROW_MULTIPLE:
                raise ValueError(f"{name}={size}: expected a multiple of {ROW_MULTIPLE} above 0")
        if self.heads % self.kv_heads:
            raise ValueError(f"heads={self.heads}: expected a multiple of {self.kv_heads} KV heads")

    @property
    def scale(self) -> float:
        """Factor of the scores."""
        return score_scale(self.dim)

    @property
    def group(self) -> int:
        """Number of query heads per KV head."""
        return self.heads // self.kv_heads


@dataclass(frozen=True, slots=True, kw_only=True)
class Decode:
    """q[batch, kv_heads, group, dim] over pages of keys and values."""

    batch: int
    kv_heads: int
    group: int  # query heads of a KV head: fewer than 8, or a multiple of 8
    dim: int
    pages: int  # in the pool
    page: int  # tokens of a page
    table: int  # pages of the longest sequence
    dtype: str = "bfloat16"
    out_dtype: str = "float32"

    def __post_init__(self) -> None:
        check_kernel_sizes(self.dim, self.dtype, self.out_dtype)
        if not 1 <= self.group <= GROUP_ROWS or (self.group > 8 and self.group % ROW_MULTIPLE):
            raise ValueError(
                f"group={self.group}: expected 1 to 8 query heads of a KV head, or a multiple of "
                f"8 up to {GROUP_ROWS}"
            )
        if (problem := page_problem(self.page)) is not None:
            raise ValueError(problem)

    @property
    def scale(self) -> float:
        """Factor of the scores."""
        return score_scale(self.dim)


MODEL_HEADS: Mapping[str, tuple[int, int, int]] = MappingProxyType(
    {
        # (query heads, KV heads, head size)
        "llama-3.2-1b": (32, 8, 64),
        "llama-3.2-3b": (24, 8, 128),
        "llama-3.1-8b": (32, 8, 128),
        "llama-3.1-70b": (64, 8, 128),
        "qwen3-0.6b": (16, 8, 128),
        "qwen3-30b-a3b": (32, 4, 128),
    }
)
"""Heads in the models' published configurations; mixtral-8x7b has those of llama-3.1-8b."""


def score_scale(dim: int) -> float:
    """Return the scores' factor for heads of `dim`."""
    return 1.0 / math.sqrt(dim)


def check_kernel_sizes(dim: int, dtype: str, out_dtype: str) -> None:
    """Check head size and types for the kernels."""
    if dim not in HEAD_DIMS:
        raise ValueError(f"head_dim={dim}: expected {' or '.join(map(str, HEAD_DIMS))}")
    if dtype not in INPUT_DTYPES:
        raise ValueError(f"dtype={dtype!r}: expected one of {', '.join(INPUT_DTYPES)}")
    if out_dtype not in (dtype, "float32"):
        raise ValueError(f"out_dtype={out_dtype!r}: expected {dtype} or float32")


def page_problem(page: int) -> str | None:
    """Return the reason why the decode kernel does not support this page size, or None.

    One of page and block must be a whole number of the other.

    >>> page_problem(16) is None, page_problem(256) is None
    (True, True)
    >>> page_problem(48)
    'page=48: expected 16, 32 or a multiple of 64 tokens'
    """
    if page > 0 and (page % 64 == 0 or (page % PAGE_MULTIPLE == 0 and 64 % page == 0)):
        return None
    return f"page={page}: expected 16, 32 or a multiple of 64 tokens"


def itemsize(dtype: str) -> int:
    """Return an element's bytes."""
    return np.dtype(jnp.dtype(dtype)).itemsize


def array_type(shape: tuple[int, ...], dtype: Any) -> Any:
    """Return the shape and dtype of an array; jax's own constructor has no annotations."""
    return jax.ShapeDtypeStruct(shape, jnp.dtype(dtype))  # type: ignore[no-untyped-call]
