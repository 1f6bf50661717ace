"""Layouts of stored weights."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from pallas_kernels.gemm.specs import PACK_BLOCK, PACK_MULTIPLE


def tile_major(w: Any) -> Any:
    """Return [.., N, K] as contiguous tiles [.., N / 64, K / 64, 64, 64]."""
    *stack, n, k = w.shape
    block = PACK_MULTIPLE
    tiles = w.reshape(*stack, n // block, block, k // block, block).swapaxes(-3, -2)
    return np.ascontiguousarray(tiles) if isinstance(w, np.ndarray) else tiles


def row_major(w: Any) -> Any:
    """Undo `tile_major`."""
    *stack, rows, columns, block, _ = w.shape
    return w.swapaxes(-3, -2).reshape(*stack, rows * block, columns * block)


def pack_int4(values: np.ndarray) -> np.ndarray:
    """Pack int8 numbers of -8 to 7, [.., K], to [.., K / 2]; K in whole blocks."""
    halves = values.reshape(*values.shape[:-1], -1, 2, PACK_BLOCK // 2)
    packed = (halves[..., 0, :] & 0x0F) | (halves[..., 1, :] << 4)
    return packed.astype(np.int8).reshape(*values.shape[:-1], -1)


def unpack_int4(packed: Any) -> Any:
    """Undo `pack_int4`, for NumPy arrays as for jax arrays."""
    low, high = (packed << 4) >> 4, packed >> 4  # arithmetic shifts: the sign is kept
    *rest, width = packed.shape
    blocks = (*rest, width // (PACK_BLOCK // 2), 1, PACK_BLOCK // 2)
    xp: Any = np if isinstance(packed, np.ndarray) else jax.numpy
    both = xp.concatenate([low.reshape(blocks), high.reshape(blocks)], axis=-2)
    return both.reshape(*rest, 2 * width)
