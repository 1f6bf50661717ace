"""Weights that are quantised already, and arrays that are filled some rows at a time."""

from __future__ import annotations

import inspect
import itertools
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pallas_kernels.host_memory import to_host
from pallas_kernels.quantized_gemm import (
    QuantizedWeights,
    dequantize,
    empty_weights,
    from_integers,
    integer_rows,
    magnitudes,
    matrix_of,
    quantize,
    quantize_rows,
    storage_shapes,
)
from tests.pallas_kernels.quantized_gemm.cases import exact_weights

DTYPES = st.sampled_from(["float32", "bfloat16", "float16"])
ARRAYS = ("data", "scales", "offsets")


def same(a: QuantizedWeights, b: QuantizedWeights) -> None:
    """Assert that all arrays are the same, bit by bit, and all else is."""
    assert replace(a, data=0, scales=0, offsets=0) == replace(b, data=0, scales=0, offsets=0)
    for name in ARRAYS:
        one, other = getattr(a, name), getattr(b, name)
        if one is None or other is None:
            assert one is other
        else:
            assert one.dtype == other.dtype
            np.testing.assert_array_equal(one.view(np.uint8), other.view(np.uint8))


def filthy(like: QuantizedWeights) -> QuantizedWeights:
    """Return arrays as those of `like`, with what nobody wrote in them: NaN, or -1 of integers."""

    def array(a: np.ndarray) -> np.ndarray:
        return np.full(a.nbytes, 0xFF, np.uint8).view(a.dtype).reshape(a.shape)

    return jax.tree.map(array, like)


@st.composite
def integers(draw: st.DrawFn) -> dict[str, Any]:
    """Numbers of a checkpoint: values, scales, offsets, kind, group."""
    kind = draw(st.sampled_from(["int8", "int4"]))
    n, k, group = (
        draw(st.integers(1, 70)),
        draw(st.integers(97, 300)),
        draw(st.sampled_from([None, 32, 64, 96])),
    )
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    low, high = (-8, 8) if kind == "int4" else (-128, 128)
    groups = (n, -(-k // group) if group else 1)

    def numbers(dtype: str) -> np.ndarray:
        kind = np.dtype(getattr(ml_dtypes, dtype, dtype))
        return rng.standard_normal(groups).astype(kind).astype(np.float32)

    scale_dtype, offset_dtype = draw(DTYPES), draw(DTYPES)
    return {
        "values": rng.integers(low, high, (n, k)).astype(np.int8),
        "scales": numbers(scale_dtype),
        "offsets": numbers(offset_dtype) if draw(st.booleans()) else None,
        "kind": kind,
        "group": group,
        "scale_dtype": scale_dtype,
        "offset_dtype": offset_dtype,
    }


def meant(given: dict[str, Any]) -> np.ndarray:
    """Return the weights [K, N] that numbers of a checkpoint stand for, in float64."""
    k = given["values"].shape[1]

    def wide(name: str) -> np.ndarray:
        return np.repeat(given[name].astype(np.float64), given["group"] or k, 1)[:, :k]

    w = given["values"].astype(np.float64) * wide("scales")
    return np.asarray((w if given["offsets"] is None else w + wide("offsets")).T)


@given(integers())
def test_integers_are_stored_exactly(given: dict[str, Any]) -> None:
    qw = from_integers(**given)
    np.testing.assert_array_equal(exact_weights(qw), meant(given))
    (n, k), kind = given["values"].shape, given["kind"]
    shapes = storage_shapes(
        k,
        n,
        kind,
        given["group"],
        scale_dtype=given["scale_dtype"],
        offset_dtype=given["offset_dtype"] if given["offsets"] is not None else None,
    )
    for name, spec in shapes.items():
        array = getattr(qw, name)
        assert (array.shape, str(array.dtype)) == (spec.shape, spec.dtype)
    assert qw.nbytes == sum(spec.nbytes for spec in shapes.values())
    # one rounding of the product, and one of the sum
    error = np.abs(dequantize(qw).astype(np.float64) - meant(given))
    assert (error <= np.finfo(np.float32).eps * magnitudes(qw)).all()


@given(integers(), st.data())
def test_rows_in_any_order_give_the_same_arrays(given: dict[str, Any], data: st.DataObject) -> None:
    whole = from_integers(**given)
    into, n = filthy(whole), len(given["values"])
    cuts = sorted({0, n, *data.draw(st.lists(st.integers(0, n), max_size=3))})
    chunks = data.draw(st.permutations(list(itertools.pairwise(cuts))))
    for start, stop in chunks:
        part = [
            None if given[name] is None else given[name][start:stop]
            for name in ("values", "scales", "offsets")
        ]
        integer_rows(into, start, *part)
    same(into, whole)


@pytest.mark.parametrize("kind", ["int8", "int4", "float8_e4m3fn"])
@pytest.mark.parametrize("group", [None, 32])
def test_floats_by_rows_give_what_quantize_gives(kind: Any, group: int | None) -> None:
    w = np.random.default_rng(0).standard_normal((70, 200)).astype(np.float32)
    whole = quantize(w, kind, group, w_layout="nk")
    into = filthy(whole)
    for start in (40, 0, 20):
        quantize_rows(into, start, w[start : start + (30 if start == 40 else 20)])
    same(into, whole)


def test_floats_beside_integers_with_offsets() -> None:
    """One array for matrices that a checkpoint holds in different formats."""
    rng = np.random.default_rng(1)
    w = rng.standard_normal((3, 64)).astype(np.float32)
    into = filthy(empty_weights(64, 5, "int4", 32, offset_dtype="float32"))
    quantize_rows(into, 0, w)
    values = rng.integers(-8, 8, (2, 64)).astype(np.int8)
    numbers = rng.standard_normal((2, 2, 2)).astype(np.float32)
    integer_rows(into, 3, values, *numbers)
    own = {"values": values, "scales": numbers[0], "offsets": numbers[1], "group": 32}
    np.testing.assert_array_equal(exact_weights(into)[:, 3:], meant(own))
    np.testing.assert_array_equal(
        exact_weights(into)[:, :3], exact_weights(quantize(w, "int4", 32, w_layout="nk"))
    )
    assert not into.offsets[:, :3].any()
    assert not into.offsets[:, 5:].any()


def test_a_stack_is_filled_matrix_by_matrix() -> None:
    rng = np.random.default_rng(2)
    values = rng.integers(-8, 8, (2, 3, 9, 40)).astype(np.int8)
    scales, offsets = rng.standard_normal((2, 2, 3, 9, 2)).astype(np.float32)
    whole = from_integers(values, scales, offsets, kind="int4", group=32)
    into = filthy(whole)
    for index in np.ndindex(2, 3):
        part = matrix_of(into, *index)
        integer_rows(part, 0, values[index], scales[index], offsets[index])
    same(into, whole)
    np.testing.assert_array_equal(dequantize(to_host(whole)), dequantize(whole))
    np.testing.assert_array_equal(
        dequantize(jax.tree.map(jnp.asarray, whole))[1, 2], dequantize(matrix_of(whole, 1, 2))
    )


def test_e4m3_numbers_are_stored_as_they_are() -> None:
    values = np.random.default_rng(3).standard_normal((4, 64)).astype(ml_dtypes.float8_e4m3fn)
    qw = from_integers(values, np.ones((4, 2), np.float32), kind="float8_e4m3fn", group=32)
    np.testing.assert_array_equal(dequantize(qw, "nk"), values.astype(np.float32))


INTO = empty_weights(64, 8, "int4", 32, scale_dtype="float16", offset_dtype="float32")
VALUES, NUMBERS = np.ones((4, 64), np.int8), np.ones((4, 2), np.float32)
LOCKED = np.ones(INTO.scales.shape, np.float16)
LOCKED.setflags(write=False)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"first": 5}, "first=5: expected from 0 to 4 for 4 of N=8 rows"),
        ({"first": -1}, "first=-1"),
        ({"values": VALUES[:, :32]}, "values of shape 4x32: expected .rows >= 1, K=64."),
        ({"values": VALUES[:0]}, "values of shape 0x64"),
        ({"values": VALUES.astype(np.uint8)}, "values of dtype uint8: expected int8 for kind='int"),
        ({"values": VALUES + np.int8(7)}, "values from 8 to 8: expected -8 to 7 for int4"),
        ({"offsets": None}, "offsets=None: expected otherwise, since into has offsets"),
        ({"into": replace(INTO, offsets=None)}, "offsets=given: expected otherwise"),
        ({"scales": NUMBERS[:3]}, "scales of shape .3, 2.: expected .4, 2., one a row and group"),
        ({"scales": NUMBERS.astype(np.int8)}, "scales of dtype int8: expected one of bfloat16"),
        ({"scales": NUMBERS / 3}, "scales holds 0.333.* at row 0, group 0: .* float16 holds exact"),
        ({"scales": NUMBERS * 1e6}, "scales holds 1000000.0 at row 0"),
        ({"offsets": NUMBERS * np.nan}, "offsets holds nan at row 0"),
        ({"into": replace(INTO, scales=LOCKED)}, "into.scales: expected a NumPy array that can be"),
        ({"into": to_host(INTO)}, "into.data: expected a NumPy array"),
        ({"into": replace(INTO, n=70)}, "w.data of shape .64, 64.: expected .128, 64. for"),
    ],
)
def test_wrong_use(change: dict[str, Any], message: str) -> None:
    arguments = {"into": INTO, "first": 0, "values": VALUES, "scales": NUMBERS, "offsets": NUMBERS}
    with pytest.raises(ValueError, match=message):
        inspect.unwrap(integer_rows)(**arguments | change)  # without jaxtyping's checks


def test_refused_rows_are_not_written() -> None:
    into = filthy(INTO)
    with pytest.raises(ValueError, match="offsets holds nan"):
        integer_rows(into, 0, VALUES, NUMBERS, NUMBERS * np.nan)
    same(into, filthy(INTO))


def test_floats_into_scales_of_float16_are_refused() -> None:
    with pytest.raises(ValueError, match=r"into\.scales of dtype float16: expected float32 or bfl"):
        quantize_rows(INTO, 0, np.ones((1, 64), np.float32))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"values": VALUES[0]}, r"values of shape 64: expected \[.., N, K\]"),
        ({"scales": NUMBERS[:3]}, "scales of shape .3, 2.: expected .4,. in front"),
        ({"group": 48}, "group=48: expected None or a multiple of 32"),
        ({"group": 256}, "group=256: expected at most K=64 rounded up to 128"),
        ({"scale_dtype": "float64"}, "scale_dtype='float64': expected one of float32, bfloat16"),
    ],
)
def test_wrong_integers(change: dict[str, Any], message: str) -> None:
    arguments: dict[str, Any] = {"values": VALUES, "scales": NUMBERS, "kind": "int4", "group": 32}
    with pytest.raises(ValueError, match=message):
        inspect.unwrap(from_integers)(**arguments | change)
