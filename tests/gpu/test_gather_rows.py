"""Rows of a real-size table in host memory, bit for bit, and nothing else of it on the device."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.gather_rows import DTYPES, gather_rows
from tests.compilations import compilations
from tests.gpu.exact import BACKEND, numbers, placed

pytestmark = pytest.mark.gpu

ROWS, COLUMNS = 32_000, 4096


@pytest.fixture(scope="module")
def table() -> tuple[np.ndarray, Any]:
    values = numbers((ROWS, COLUMNS), "bfloat16", 1)
    return values, placed(values)


def ids_of(tokens: int, rows: int = ROWS) -> np.ndarray:
    """Random ids with both ends of the table and a repeated one, where there is room."""
    ids = np.random.default_rng(tokens).integers(0, rows, tokens, dtype=np.int32)
    ids[-3:] = np.array([0, rows - 1, ids[0]], np.int32)[-min(tokens, 3) :]
    return ids


def same(out: Any, expected: np.ndarray) -> None:
    assert out.sharding.memory_kind == "device"
    np.testing.assert_array_equal(np.asarray(out).view(np.uint8), expected.view(np.uint8))


@pytest.mark.parametrize(
    ("tokens", "limit"), [(1, None), (5, None), (300, 1), (300, 16), (8192, None)]
)
def test_rows(table: Any, tokens: int, limit: int | None) -> None:
    values, host = table
    ids = ids_of(tokens)
    same(gather_rows(host, jnp.asarray(ids), sm_limit=limit, backend=BACKEND), values[ids])


@pytest.mark.parametrize("dtype", DTYPES)
def test_types(dtype: str) -> None:
    kind, rng = np.dtype(jnp.dtype(dtype)), np.random.default_rng(3)
    table = rng.integers(0, 127, (500, 640)).astype(np.float32).astype(kind)
    ids = ids_of(77, 500)
    same(gather_rows(placed(table), jnp.asarray(ids), backend=BACKEND), table[ids])


def test_run_time_values_compile_nothing_and_copy_no_table(table: Any) -> None:
    values, host = table

    @jax.jit
    def run(table: Any, ids: jax.Array, limit: jax.Array) -> jax.Array:
        return gather_rows(table, ids, sm_limit=limit, backend=BACKEND)

    jax.block_until_ready(run(host, jnp.asarray(ids_of(16)), jnp.int32(4)))
    before = (jax.devices()[0].memory_stats() or {}).get("peak_bytes_in_use", 0)
    outside = jnp.asarray(np.array([-7, ROWS, 2**31 - 1] + [5] * 13, np.int32))
    limit = jnp.int32(500)
    with compilations() as seen:
        out = run(host, outside, limit)
    assert seen == []
    same(out, values[[0, ROWS - 1, ROWS - 1] + [5] * 13])
    after = (jax.devices()[0].memory_stats() or {}).get("peak_bytes_in_use", 0)
    assert after - before < values.nbytes // 100
