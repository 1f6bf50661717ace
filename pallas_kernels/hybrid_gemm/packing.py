"""Weights as the kernel wants them: K and N padded with zeros to multiples of 64, once, at load."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pallas_kernels.counting import round_up
from pallas_kernels.hopper import INPUT_DTYPES
from pallas_kernels.hybrid_gemm.specs import (
    PACK_MULTIPLE,
    W_LAYOUTS,
    WLayout,
)


@jax.tree_util.register_dataclass
@dataclass(frozen=True, slots=True, kw_only=True)
class PackedWeights:
    """A weight matrix, or a stack of them, padded for TMA; a pytree of one array.

    `data` is [K', N'] or [N', K'] by `w_layout`, with any number of layers before; K' and N' are
    `k` and `n` rounded up to multiples of 64, and what was added is zero. It may be moved between
    memories like any pytree.
    """

    data: Any  # jax or NumPy array; other things while jax transforms the tree
    k: int = field(metadata={"static": True})
    n: int = field(metadata={"static": True})
    w_layout: WLayout = field(metadata={"static": True})


def pack_weights(w: jax.Array | np.ndarray, w_layout: WLayout = "kn") -> PackedWeights:
    """Pad K and N of `w` with zeros to multiples of 64; nothing is copied if they are already.

    NumPy weights stay NumPy (pack before placing them in host memory); jax arrays stay on their
    device.

    Args:
      w: bf16 or f16, [K, N] or [N, K], or a stack [L, ...] of them.
      w_layout: "kn" or "nk".

    Raises:
      ValueError: the number of dimensions, the type or the layout is not one of these.
    """
    check_weights(w, w_layout)
    sizes = tuple(int(s) for s in w.shape[-2:])
    k, n = sizes if w_layout == "kn" else sizes[::-1]
    extra = [(0, 0)] * (w.ndim - 2) + [(0, round_up(s, PACK_MULTIPLE) - s) for s in sizes]
    if any(after for _, after in extra):
        w = np.pad(w, extra) if isinstance(w, np.ndarray) else jnp.pad(w, extra)
    return PackedWeights(data=w, k=k, n=n, w_layout=w_layout)


def check_weights(w: jax.Array | np.ndarray, w_layout: str) -> None:
    """Return if the type, layout and number of dimensions of `w` are ones the kernel takes.

    Raises:
      ValueError: they are not.
    """
    if w_layout not in W_LAYOUTS:
        raise ValueError(f"w_layout={w_layout!r}: expected 'kn' for W[K, N] or 'nk' for W[N, K]")
    if w.ndim not in (2, 3) or 0 in w.shape:
        shape = "x".join(map(str, w.shape))
        raise ValueError(f"w of shape {shape}: expected a matrix or a stack [L, ...], none empty")
    if str(w.dtype) not in INPUT_DTYPES:
        raise ValueError(f"w of dtype {w.dtype}: expected one of {', '.join(INPUT_DTYPES)}")
