"""`gather_rows` against NumPy, bit for bit: the reference, the kernel step by step, wrong use."""

from __future__ import annotations

import inspect
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pallas_kernels.gather_rows import DTYPES, GatherRows, gather_rows
from pallas_kernels.gather_rows.api import launch
from pallas_kernels.hopper import SHARED_BYTES_LIMIT
from pallas_kernels.host_memory import to_host
from pallas_kernels.mosaic import interpret_params
from tests.pallas_kernels.interpreting import count_copies, races_found, reset, within
from tests.tiers import tiered

SMALL = {"piece_bytes": 48, "stages": 3, "sm_count": 3}


def table_of(*shape: int, dtype: str = "bfloat16", seed: int = 0) -> np.ndarray:
    """Any bits that are no NaN, which would compare unequal and mean unwritten memory."""
    rng = np.random.default_rng(seed)
    kind = np.dtype(jnp.dtype(dtype))
    if kind.kind in "iu":
        return rng.integers(0, 127, shape).astype(kind)
    return rng.standard_normal(shape).astype(np.float32).astype(kind)


TABLE = table_of(20, 64)
IDS = np.array([3, 19, 0, 3, 7], np.int32)


def same(out: jax.Array, expected: np.ndarray) -> None:
    assert out.dtype == expected.dtype
    assert out.shape == expected.shape
    np.testing.assert_array_equal(np.asarray(out).view(np.uint8), expected.view(np.uint8))


def run_small(table: np.ndarray, ids: np.ndarray, *, active: int = 3, **settings: Any) -> jax.Array:
    """Run the kernel with small pieces on few CTAs."""
    spec = GatherRows(
        tokens=len(ids), rows=len(table), columns=table.shape[1], dtype=str(table.dtype), **SMALL
    )
    limit = np.array([active], np.int32)
    interpret = interpret_params(**settings)
    return within(lambda: launch(table, ids, limit, spec=spec, interpret=interpret))


@pytest.mark.parametrize("place", [lambda t: t, jnp.asarray, to_host])
def test_auto_works_wherever_the_table_is(place: Any) -> None:
    same(gather_rows(place(TABLE), jnp.asarray(IDS)), TABLE[IDS])
    out = jax.jit(gather_rows)(place(TABLE), IDS)
    assert out.sharding.memory_kind == "device"
    same(out, TABLE[IDS])


@pytest.mark.parametrize("backend", ["reference", "interpret"])
def test_traced_values_are_clamped(backend: Any) -> None:
    run = jax.jit(lambda t, i, s: gather_rows(t, i, sm_limit=s, backend=backend))
    ids = np.array([-5, 20, 2**31 - 1, 4], np.int32)
    out = within(lambda: run(jnp.asarray(TABLE), ids, 99).block_until_ready())
    same(out, TABLE[[0, 19, 19, 4]])
    wide = run(jnp.asarray(TABLE), np.array([2**32 - 1, 2**31, 1, 0], np.uint32), 1)
    same(wide, TABLE[[19, 19, 1, 0]])


@pytest.mark.parametrize("dtype", tiered(DTYPES, DTYPES[0], DTYPES[-1]))
def test_every_type_through_the_kernel(dtype: str) -> None:
    table = table_of(11, 96, dtype=dtype)
    ids = np.array([10, 0, 5, 5, 9, 1, 2], np.int32)
    same(run_small(table, ids, active=2), table[ids])


def test_each_row_is_fetched_once_for_each_token(monkeypatch: pytest.MonkeyPatch) -> None:
    counted = count_copies(monkeypatch)
    same(run_small(TABLE, IDS), TABLE[IDS])  # rows of 128 bytes: 24 + 24 + 24 columns, 8 twice
    assert sum(copy.nbytes for copy in counted.loads) == 5 * 3 * 48
    assert sum(copy.nbytes for copy in counted.stores) == 5 * 3 * 48
    assert {copy.cluster for copy in counted.loads} == {0, 1, 2}


def test_no_race() -> None:
    ids = np.arange(20, dtype=np.int32)[::-1].copy()
    whole = TABLE[:, :48].copy()  # two pieces that do not overlap: an overlap is stored twice
    try:
        same(run_small(whole, ids, detect_races=True), whole[ids])
        assert not races_found()
    finally:
        reset()


def test_a_derivative_is_refused() -> None:
    with pytest.raises(NotImplementedError, match="gather_rows has no derivative"):
        jax.grad(lambda t: gather_rows(t, IDS).astype(jnp.float32).sum())(jnp.asarray(TABLE))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"table": [1]}, "table of type list: expected an array or HostArray"),
        ({"table": TABLE[0]}, r"table of shape 64: expected \[V, C\]"),
        ({"table": TABLE[:0]}, "table of shape 0x64"),
        ({"table": TABLE.astype(bool)}, "table of dtype bool: expected one of bfloat16"),
        ({"table": table_of(4, 20)}, "C=20: expected a multiple of 8, .* 16 bytes and has 40. Pad"),
        ({"ids": 3}, "ids: got int, expected an array"),
        ({"ids": IDS[None]}, r"ids: got \(1, 5\), expected an array \[T >= 1\]"),
        ({"ids": IDS.astype(np.float32)}, "ids of dtype float32: expected integers"),
        ({"ids": np.array([1, -1])}, "ids: got -1, expected numbers from 0 to 19"),
        ({"ids": np.array([20, 1])}, "ids: got 20, expected numbers from 0 to 19"),
        ({"ids": jax.device_put(jnp.asarray(IDS), jax.memory.Space.Host)}, "ids in host memory"),
        ({"sm_limit": 0}, "sm_limit=0: expected from cluster=1 to"),
        ({"backend": "cuda"}, "backend='cuda': expected one of"),
    ],
)
def test_wrong_use(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        inspect.unwrap(gather_rows)(**{"table": TABLE, "ids": IDS, **change})


@given(
    tokens=st.integers(1, 5000),
    units=st.integers(1, 4000),
    dtype=st.sampled_from(DTYPES),
    sms=st.integers(1, 132),
)
def test_pieces_cover_the_row(tokens: int, units: int, dtype: str, sms: int) -> None:
    columns = units * 16 // np.dtype(jnp.dtype(dtype)).itemsize
    spec = GatherRows(tokens=tokens, rows=9, columns=columns, dtype=dtype, sm_count=sms)
    assert spec.width % spec.unit == 0
    assert spec.width <= columns <= spec.pieces * spec.width
    assert spec.width * spec.itemsize <= spec.piece_bytes
    assert 1 <= spec.ctas <= sms
    assert spec.shared_bytes <= SHARED_BYTES_LIMIT
