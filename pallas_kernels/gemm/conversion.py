"""Weights in registers: from stored numbers to left operands of wgmma."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl

from pallas_kernels.gemm.specs import PACK_BLOCK, Kind
from pallas_kernels.hopper import TMA_BOX
from pallas_kernels.mosaic import Ref, plgpu

_HALF = PACK_BLOCK // 2


def piece(stored: Any, number: int, *, kind: Kind, dtype: Any, width: int) -> Any:
    """Convert a contiguous piece of K in a tile [rows, stored columns].

    Args:
      number: index along K.
      width: weights of a piece; for int4 a divisor of 64.
    """
    first = number * width
    if kind != "int4":
        part = stored[:, first : first + width]
        if kind == "float8_e4m3fn":  # to two bytes only by way of four
            part = part.astype(jnp.float32)
        return part.astype(dtype)
    column = first // PACK_BLOCK * _HALF + first % _HALF
    both = stored[:, column : column + width]
    # Registers of bytes take bitwise operations alone; the rest is exact in two bytes.
    if first % PACK_BLOCK < _HALF:
        low = (both & jnp.int8(0x0F)) ^ jnp.int8(0x08)
        return low.astype(dtype) - jnp.asarray(8, dtype)
    return (both & jnp.int8(-16)).astype(dtype) * jnp.asarray(1 / 16, dtype)


def widest(kind: Kind) -> int:
    """Return the largest number of weights of a piece."""
    return _HALF if kind == "int4" else TMA_BOX


def scaled(weights: Any, scale: Any) -> Any:
    """Multiply a piece's rows by scales, in float32, and round."""
    product = weights.astype(jnp.float32) * lax.broadcast_in_dim(scale, weights.shape, (0,))
    return product.astype(weights.dtype)


# Exact for every kind: int8 and e4m3 have at most 8 significant bits, as many as bfloat16.
def operand(weights: Any, detour: Ref | None, column: int) -> Any:
    """Return wgmma's left operand in registers, or shared memory for interpret mode.

    Args:
      detour: tile with the piece's rows; None for registers.
      column: first column in the tile.
    """
    if detour is None:
        return weights
    target = detour.at[:, pl.ds(column, weights.shape[1])]
    target[...] = weights
    plgpu.commit_smem()
    return target
