"""Operands of a grouped GEMM, and what a right result is."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np

from pallas_kernels import check_gemm


def operands(
    t: int, k: int, n: int, experts: int, *, dtype: str = "bfloat16", seed: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """Return (x [t, k], w [experts, k, n]), unit normal."""
    rng = np.random.default_rng(seed)
    kind = np.dtype(ml_dtypes.bfloat16) if dtype == "bfloat16" else np.dtype(dtype)
    return tuple(rng.standard_normal(s).astype(kind) for s in ((t, k), (experts, k, n)))  # type: ignore[return-value]


def poisoned(w: np.ndarray, sizes: Any) -> jax.Array:
    """Return w with NaN for experts without rows: one that is read spoils what it meets."""
    spoiled = w.copy()
    spoiled[np.asarray(sizes) == 0] = np.nan
    return jnp.asarray(spoiled)


def stored(w: np.ndarray | jax.Array, w_layout: str) -> jax.Array:
    """Return w [..., k, n] in `w_layout`."""
    return jnp.asarray(w if w_layout == "kn" else w.swapaxes(-1, -2))


def assert_right(out: np.ndarray, x: np.ndarray, w: np.ndarray, sizes: Any) -> None:
    """Fail unless every row is its expert's product within the bound, or zero without one."""
    assert out.shape == (x.shape[0], w.shape[2])
    begin = 0
    for expert, size in enumerate(sizes):
        rows = slice(begin, begin + int(size))
        if size:
            found = check_gemm(out[rows], x[rows], w[expert])
            assert found.ok, (expert, found)
        begin += int(size)
    assert (out[begin:] == 0).all()
