"""`gather_rows` against NumPy, bit for bit: the reference, the kernel step by step, wrong use."""

from __future__ import annotations

import inspect
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pallas_kernels import KernelUnavailable, device, missing
from pallas_kernels.gather_rows import DTYPES, Config, GatherRows, gather_rows
from pallas_kernels.gather_rows.programs import programs
from pallas_kernels.hopper import SHARED_BYTES_LIMIT
from pallas_kernels.host_memory import to_host
from pallas_kernels.mosaic import interpret_params
from tests.pallas_kernels.interpreting import count_copies, races_found, reset, within
from tests.tiers import tiered

SMALL = Config(piece_bytes=64, stages=3, sm_count=3)


def table_of(*shape: int, dtype: str = "bfloat16", seed: int = 0) -> np.ndarray:
    """Any bits that are no NaN, which would compare unequal and mean unwritten memory."""
    rng = np.random.default_rng(seed)
    kind = np.dtype(jnp.dtype(dtype))
    if kind.kind in "iu":
        return rng.integers(0, 127, shape).astype(kind)
    return rng.standard_normal(shape).astype(np.float32).astype(kind)


TABLE = table_of(20, 64)
STACK = table_of(3, 20, 64, seed=1)
IDS = np.array([3, 19, 0, 3, 7], np.int32)


def same(out: jax.Array, expected: np.ndarray) -> None:
    assert out.dtype == expected.dtype
    assert out.shape == expected.shape
    np.testing.assert_array_equal(np.asarray(out).view(np.uint8), expected.view(np.uint8))


@pytest.mark.parametrize("place", [lambda t: t, jnp.asarray, to_host])
def test_auto_works_wherever_the_table_is(place: Any) -> None:
    same(gather_rows(place(TABLE), jnp.asarray(IDS)), TABLE[IDS])
    same(gather_rows(place(STACK), IDS, layer=1, columns=5), STACK[1][IDS, :5].copy())
    run = jax.jit(lambda t, i, n: gather_rows(t, i, layer=n, columns=9, out_dtype="float32"))
    out = run(place(STACK), IDS, 2)
    assert out.sharding.memory_kind == "device"
    same(out, STACK[2][IDS, :9].astype(np.float32))


@pytest.mark.parametrize("backend", ["reference", "interpret"])
def test_traced_values_are_clamped(backend: Any) -> None:
    ids = np.array([-5, 20, 2**31 - 1, 4], np.int32)
    run = jax.jit(
        lambda t, i, n, s: gather_rows(
            t, i, layer=n, sm_limit=s, config=SMALL, backend=backend, columns=50
        )
    )
    out = within(lambda: run(jnp.asarray(STACK), ids, 7, 99).block_until_ready())
    same(out, STACK[2][[0, 19, 19, 4], :50].copy())
    wide = run(jnp.asarray(STACK), np.array([2**32 - 1, 2**31, 1, 0], np.uint32), 0, 1)
    same(wide, STACK[0][[19, 19, 1, 0], :50].copy())


@pytest.mark.parametrize("dtype", tiered(DTYPES, DTYPES[0], DTYPES[-1]))
def test_every_type_through_the_kernel(dtype: str) -> None:
    table = table_of(11, 96, dtype=dtype)
    ids = np.array([10, 0, 5, 5, 9, 1, 2], np.int32)
    out = within(lambda: gather_rows(to_host(table), ids, config=SMALL, backend="interpret"))
    same(out, table[ids])


def test_each_row_is_fetched_once_for_each_token(monkeypatch: pytest.MonkeyPatch) -> None:
    counted = count_copies(monkeypatch)
    config = replace(SMALL, piece_bytes=48)  # rows of 128 bytes in three pieces
    out = within(lambda: gather_rows(to_host(TABLE), IDS, config=config, backend="interpret"))
    same(out, TABLE[IDS])
    spec = GatherRows(tokens=5, rows=20, row_columns=64, columns=64, config=config)
    assert (spec.pieces, spec.width) == (3, 24)  # 24 + 24 + 24 columns, 8 of them twice
    assert sum(copy.nbytes for copy in counted.loads) == 5 * 3 * 48
    assert sum(copy.nbytes for copy in counted.stores) == 5 * 3 * 48
    assert {copy.cluster for copy in counted.loads} == {0, 1, 2}


def test_no_race(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "pallas_kernels.gather_rows.api.interpret_settings",
        lambda _: interpret_params(detect_races=True),
    )
    ids = np.arange(20, dtype=np.int32)[::-1].copy()
    try:
        out = within(lambda: gather_rows(to_host(TABLE), ids, config=SMALL, backend="interpret"))
        same(out, TABLE[ids])
        assert not races_found()
    finally:
        reset()


def test_in_a_scan_over_layers() -> None:
    table = to_host(STACK)

    @jax.jit
    def every_layer(table: Any, ids: jax.Array) -> jax.Array:
        return jax.lax.scan(
            lambda carry, layer: (carry, gather_rows(table, ids, layer=layer)), None, jnp.arange(3)
        )[1]

    same(every_layer(table, jnp.asarray(IDS)), STACK[:, IDS])


def test_a_derivative_is_refused() -> None:
    table = jnp.asarray(TABLE)
    with pytest.raises(NotImplementedError, match="gather_rows has no derivative"):
        jax.grad(lambda t: gather_rows(t, IDS).astype(jnp.float32).sum())(table)


def test_sm90_says_what_is_missing() -> None:
    if not missing("sm90", device()):
        pytest.skip("this device runs sm90")
    with pytest.raises(KernelUnavailable, match="sm90"):
        gather_rows(TABLE, IDS, backend="sm90")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"table": [1]}, "table of type list: expected an array or HostArray"),
        ({"table": TABLE[0]}, r"table of shape 64: expected \[V, C\]"),
        ({"table": TABLE[:0]}, "table of shape 0x64"),
        ({"table": TABLE.astype(bool)}, "table of dtype bool: expected one of bfloat16"),
        (
            {"table": table_of(4, 20)},
            "C=20: expected a multiple of 8, since a row of bfloat16 .* 16 bytes and has 40. Pad",
        ),
        ({"ids": 3}, "ids: got int, expected an array"),
        ({"ids": IDS[None]}, r"ids: got \(1, 5\), expected an array \[T >= 1\]"),
        ({"ids": IDS[:0]}, r"ids: got \(0,\)"),
        ({"ids": IDS.astype(np.float32)}, "ids of dtype float32: expected integers"),
        ({"ids": np.array([1, -1])}, "ids: got -1, expected numbers from 0 to 19"),
        ({"ids": np.array([20, 1])}, "ids: got 20, expected numbers from 0 to 19"),
        ({"ids": jax.device_put(jnp.asarray(IDS), jax.memory.Space.Host)}, "ids in host memory"),
        ({"layer": 0}, "layer=0: expected None"),
        ({"table": STACK}, "layer=None: expected a number from 0 to 2"),
        ({"table": STACK, "layer": 3}, "layer=3: expected a number from 0 to 2"),
        ({"columns": 0}, "columns=0: expected None or a number from 1 to C=64"),
        ({"columns": 65}, "columns=65"),
        ({"columns": 1.5}, "columns=1.5"),
        ({"sm_limit": 0}, "sm_limit=0: expected from cluster=1 to"),
        ({"sm_limit": 4, "config": SMALL}, "sm_limit=4: expected from cluster=1 to 3 SMs"),
        ({"backend": "cuda"}, "backend='cuda': expected one of"),
        (
            {"table": table_of(2, 16384), "ids": IDS[2:3], "config": Config(stages=32)},
            "bytes of shared memory",
        ),
    ],
)
def test_wrong_use(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        inspect.unwrap(gather_rows)(**{"table": TABLE, "ids": IDS, **change})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"piece_bytes": 24}, "piece_bytes=24: expected a multiple of 16"),
        ({"piece_bytes": 2**17}, "piece_bytes=131072"),
        ({"stages": 1}, "stages=1: expected a number from 2 to 32"),
        ({"stages": 33}, "stages=33: expected a number from 2 to 32"),
        ({"sm_count": 0}, "sm_count=0"),
    ],
)
def test_wrong_configurations(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Config(**change)


@given(
    tokens=st.integers(1, 5000),
    units=st.integers(1, 4000),
    dtype=st.sampled_from(DTYPES),
    sms=st.integers(1, 132),
)
def test_pieces_cover_the_row(tokens: int, units: int, dtype: str, sms: int) -> None:
    columns = units * 16 // np.dtype(jnp.dtype(dtype)).itemsize
    config = Config(sm_count=sms)
    spec = GatherRows(
        tokens=tokens, rows=9, row_columns=columns, columns=columns, dtype=dtype, config=config
    )
    assert spec.width % spec.unit == 0
    assert spec.width <= columns <= spec.pieces * spec.width
    assert spec.width * spec.itemsize <= config.piece_bytes
    assert 1 <= spec.ctas <= sms
    assert spec.shared_bytes <= SHARED_BYTES_LIMIT


def test_programs_are_distinct() -> None:
    for sms in (132, 16):
        found = programs(sms)
        assert len({p.name for p in found}) == len({p.key for p in found}) == len(found)
        assert all(p.host_bytes == p.arguments[0].nbytes for p in found)
