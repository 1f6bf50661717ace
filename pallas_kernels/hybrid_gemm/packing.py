"""Packed weights: K and N padded to multiples of 64."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pallas_kernels.gemm.layout import tile_major
from pallas_kernels.gemm.specs import PACK_MULTIPLE, WLayout, check_layout
from pallas_kernels.hopper import INPUT_DTYPES
from pallas_kernels.integer_math import round_up


@jax.tree_util.register_dataclass
@dataclass(frozen=True, slots=True, kw_only=True)
class PackedWeights:
    """A weight matrix, or a stack of them, padded for TMA; a pytree of one array.

    `data` is [K', N'], [N', K'] or tile-major by `w_layout`, with leading layers; K' and N' are `k`
    and `n` up to multiples of 64, padded with zeros.

    "tiles" is [N / 64, K / 64, 64, 64] of an [N, K] matrix, 8 KiB of contiguous memory a load.
    """

    data: Any  # jax or NumPy array; other things while jax transforms the tree
    k: int = field(metadata={"static": True})
    n: int = field(metadata={"static": True})
    w_layout: WLayout = field(metadata={"static": True})


def pack_weights(
    w: jax.Array | np.ndarray, w_layout: WLayout = "kn", *, tiles: bool = False
) -> PackedWeights:
    """Return `w` with zeros to multiples of 64 of K and N; NumPy weights stay NumPy.

    Args:
      w: bf16 or f16, [K, N] or [N, K], or a stack [L, ...] of them.
      tiles: whether to store tile-major.

    Raises:
      ValueError: other dimensions, type or layout.
    """
    if w_layout == "tiles":
        raise ValueError("w_layout='tiles': expected 'kn' or 'nk', of which tiles=True makes tiles")
    check_weights(w, w_layout)
    sizes = tuple(int(s) for s in w.shape[-2:])
    k, n = sizes if w_layout == "kn" else sizes[::-1]
    extra = [(0, 0)] * (w.ndim - 2) + [(0, round_up(s, PACK_MULTIPLE) - s) for s in sizes]
    if any(after for _, after in extra):
        w = np.pad(w, extra) if isinstance(w, np.ndarray) else jnp.pad(w, extra)
    if tiles:
        data = tile_major(w if w_layout == "nk" else w.swapaxes(-1, -2))
        return PackedWeights(data=data, k=k, n=n, w_layout="tiles")
    return PackedWeights(data=w, k=k, n=n, w_layout=w_layout)


def stored_sizes(w: Any, w_layout: str) -> tuple[int, int, int | None]:
    """Return (K, N, layers) of an array that `check_weights` accepts."""
    if w_layout == "tiles":
        n, k = w.shape[-4] * w.shape[-2], w.shape[-3] * w.shape[-1]
    else:
        n, k = w.shape[-2:] if w_layout == "nk" else w.shape[-2:][::-1]
    return int(k), int(n), int(w.shape[0]) if w.ndim % 2 else None


def check_weights(w: jax.Array | np.ndarray, w_layout: str) -> None:
    """Check type, layout and dimensions of `w`."""
    check_layout(w_layout)
    shape = "x".join(map(str, w.shape))
    if w.ndim not in ((4, 5) if w_layout == "tiles" else (2, 3)) or 0 in w.shape:
        raise ValueError(f"w of shape {shape}: expected a matrix or a stack [L, ...], none empty")
    if w_layout == "tiles" and w.shape[-2:] != (PACK_MULTIPLE, PACK_MULTIPLE):
        raise ValueError(f"w of shape {shape}: expected tiles [N / 64, K / 64, 64, 64]")
    if str(w.dtype) not in INPUT_DTYPES:
        raise ValueError(f"w of dtype {w.dtype}: expected one of {', '.join(INPUT_DTYPES)}")
