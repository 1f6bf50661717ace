"""Checks of the arguments."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pallas_kernels.attention.specs import UNBOUNDED
from pallas_kernels.hopper import INPUT_DTYPES
from pallas_kernels.host_memory import in_host_memory

_DTYPES = (*INPUT_DTYPES, "float32")  # the reference takes float32 too


def check_arrays(**arrays: tuple[Any, int, str]) -> None:
    """Check (array, rank, names of axes) by name: memory, rank, one dtype."""
    dtypes: dict[str, str] = {}
    for name, (array, rank, axes) in arrays.items():
        if not isinstance(array, jax.Array | np.ndarray) or array.ndim != rank:
            got = getattr(array, "shape", type(array).__name__)
            raise ValueError(f"{name}: got {got}, expected an array {axes}")
        if isinstance(array, jax.Array) and in_host_memory(array):
            raise ValueError(f"{name} in host memory: expected device memory")
        if min(array.shape) < 1:
            raise ValueError(f"{name} of shape {array.shape}: expected every size above 0")
        dtypes[name] = str(array.dtype)
    first, dtype = next(iter(dtypes.items()))
    if dtype not in _DTYPES:
        raise ValueError(f"{first} of dtype {dtype}: expected one of {', '.join(_DTYPES)}")
    for name, other in dtypes.items():
        if other != dtype:
            raise ValueError(f"{name} of dtype {other}: expected {dtype} as in {first}")


def check_heads(q_heads: int, kv_heads: int, q_dim: int, kv_dim: int) -> None:
    """Check the heads of queries against those of keys."""
    if q_heads % kv_heads:
        raise ValueError(f"q with {q_heads} heads: expected a multiple of {kv_heads} KV heads")
    if q_dim != kv_dim:
        raise ValueError(f"q with head_dim={q_dim}: expected {kv_dim} as in the keys")


def per_row(name: str, value: Any, rows: int, low: int, high: int) -> Any:
    """Return int32, a number a row in [low, high]; jax's are clamped."""
    if isinstance(value, jax.Array):
        shape, kind = value.shape, np.dtype(value.dtype).kind
    else:
        value = np.asarray(value)
        shape, kind = value.shape, value.dtype.kind
    if kind not in "iu" or shape not in ((), (rows,)):
        expected = f"a whole number or int32 of shape ({rows},)"
        raise ValueError(f"{name} of shape {shape} and kind {kind!r}: expected {expected}")
    if isinstance(value, jax.Array):
        return jnp.broadcast_to(jnp.clip(value.astype(jnp.int32), low, high), (rows,))
    outside = value[(value < low) | (value > high)] if value.ndim else value[None]
    if outside.size and not low <= int(outside[0]) <= high:
        raise ValueError(f"{name}={int(outside[0])}: expected from {low} to {high}")
    return np.broadcast_to(value.astype(np.int32), (rows,))


def check_tables(tables: Any, rows: int) -> None:
    """Check that the block tables are int32 [rows, pages]."""
    if not isinstance(tables, jax.Array | np.ndarray) or tables.ndim != 2:
        got = getattr(tables, "shape", type(tables).__name__)
        raise ValueError(f"block_tables: got {got}, expected an array [B, max_pages]")
    if str(tables.dtype) != "int32" or tables.shape[0] != rows or tables.shape[1] < 1:
        raise ValueError(
            f"block_tables of shape {tables.shape} and dtype {tables.dtype}: expected int32 "
            f"[{rows}, max_pages >= 1]"
        )


def widths(window: Any, rows: int, *, causal: bool) -> Any:
    """Return each row's window for the kernels."""
    if window is not None and not causal:
        raise ValueError(f"window={window!r}: expected None where causal=False")
    return per_row("window", UNBOUNDED if window is None else window, rows, 1, UNBOUNDED)


def stack_bounds(position: Any, length: Any, window: Any) -> Any:
    """Return int32 [rows, 3], NumPy unless partly jax."""
    parts = (position, length, window)
    xp = jnp if any(isinstance(part, jax.Array) for part in parts) else np
    return xp.stack([xp.asarray(part) for part in parts], axis=1).astype(np.int32)
