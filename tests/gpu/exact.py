"""Real-size operands and exact checks of samples of a result."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np

from pallas_kernels import check_gemm
from pallas_kernels.gemm import present_machine
from pallas_kernels.host_memory import to_host

# The tests themselves can be tried without a GPU, in a Python that runs them against the reference.
BACKEND: Any = os.environ.get("C2C_TESTS_BACKEND", "sm90")

# A float64 product of a whole large GEMM takes minutes: its first and last rows and columns, those
# around tile edges and random ones are exact, all others near XLA's product on the device.
SAMPLES = 40


def sm_count() -> int:
    """SMs of the device; of an H200 where there is none."""
    return present_machine().sm_count


def numbers(shape: tuple[int, ...], dtype: str, seed: int, scale: float = 1.0) -> np.ndarray:
    kind = np.dtype(ml_dtypes.bfloat16) if dtype == "bfloat16" else np.dtype(dtype)
    values = np.random.default_rng(seed).standard_normal(shape, np.float32) * np.float32(scale)
    return values.astype(kind)


def placed(w: Any) -> Any:
    """Return weights, or a tree of them, in pinned host memory."""
    return to_host(w)


@functools.lru_cache(maxsize=2)
def weights(
    k: int, n: int, dtype: str = "bfloat16", layers: int | None = None, seed: int = 1
) -> tuple[np.ndarray, Any]:
    """Return W[K, N] or [L, K, N] as numpy holds it and where kernels read it."""
    w = numbers((k, n) if layers is None else (layers, k, n), dtype, seed, k**-0.5)
    return w, placed(w)


def transposed(k: int, n: int) -> Any:
    """Return the same weights as [N, K], in the same memory."""
    return placed(np.ascontiguousarray(weights(k, n)[0].T))


def activations(m: int, k: int, dtype: str = "bfloat16", seed: int = 0) -> np.ndarray:
    return numbers((m, k), dtype, seed)


def sampled(size: int, seed: int) -> np.ndarray:
    """Return indices: both ends, around multiples of 64 to 2048, and random ones."""
    edges = [e + d for e in (64, 128, 256, 512, 2048) for d in (-1, 0)]
    random = np.random.default_rng(seed).integers(0, size, SAMPLES)
    chosen = np.unique([0, size - 1, *edges, *random.tolist()])
    return chosen[chosen < size]


def assert_exact(out: Any, x: np.ndarray, w: np.ndarray) -> None:
    """Compare samples of `out` with float64 within the derived bound."""
    rows, columns = sampled(x.shape[0], 2), sampled(w.shape[1], 3)
    part = np.asarray(jax.jit(lambda o: o[rows][:, columns])(out))
    check = check_gemm(part, x[rows], w[:, columns])
    place = f"row {rows[check.row]}, column {columns[check.column]}"
    assert check.worst_ratio <= 1, f"{place}: {check}"


def assert_everywhere(out: Any, x: np.ndarray, w: np.ndarray) -> None:
    """Compare all of `out` with XLA's float32 product of the same numbers, on the device.

    Both are within a rounding error of the truth: K float32 additions in each, and a rounding to
    the type of `out`.
    """
    eps_out = float(ml_dtypes.finfo(out.dtype).eps)
    eps = 2 * x.shape[1] * 2.0**-23 + 2 * eps_out
    assert float(_worst(out, jnp.asarray(x), jnp.asarray(w), eps)) <= 1


@jax.jit
def _worst(out: Any, x: Any, w: Any, eps: Any) -> Any:
    right = jnp.matmul(x, w, preferred_element_type=jnp.float32)
    size = jnp.matmul(jnp.abs(x), jnp.abs(w), preferred_element_type=jnp.float32)
    error = jnp.abs(out.astype(jnp.float32) - right) / (eps * size + 1e-30)
    return jnp.max(jnp.where(jnp.isfinite(error), error, jnp.inf))


def poisoned(run: Callable[[], Any], shape: tuple[int, ...], dtype: Any) -> Any:
    """Return `run()`, whose result is likely to lie where NaN was: nothing may stay unwritten."""
    poison = jnp.full(shape, jnp.nan, dtype).block_until_ready()
    poison.delete()
    return jax.block_until_ready(run())


@jax.jit
def _same_bits(a: Any, b: Any) -> Any:
    kind = {2: jnp.uint16, 4: jnp.uint32}[a.dtype.itemsize]
    cast = functools.partial(jax.lax.bitcast_convert_type, new_dtype=kind)
    return jnp.array_equal(cast(a), cast(b))


def same_bits(a: Any, b: Any) -> bool:
    """Return True if two arrays on the device are equal bit for bit, NaN included."""
    return bool(_same_bits(a, b))
