"""Laws of quantising: how near, invariant to what, padded and packed how, what is refused."""

from __future__ import annotations

import inspect
from typing import Any

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from pallas_kernels.gemm.layout import pack_int4, unpack_int4
from pallas_kernels.host_memory import to_host
from pallas_kernels.quantized_gemm import (
    KINDS,
    dequantize,
    quantization_error_bound,
    quantize,
    rows,
)
from pallas_kernels.quantized_gemm.rows import LARGEST
from tests.pallas_kernels.quantized_gemm.cases import exact_weights

WEIGHTS = st.sampled_from([(kind, group) for kind in KINDS for group in (None, 32, 128)])
SIZES = st.tuples(st.integers(129, 300), st.integers(1, 70))
MATRICES = SIZES.flatmap(
    lambda size: st.one_of(
        arrays(
            np.float32, size, elements=st.floats(-(2.0**100), 2.0**100, width=32), fill=st.just(0.0)
        ),
        st.integers(0, 2**32 - 1).map(
            lambda seed: np.random.default_rng(seed).standard_normal(size).astype(np.float32)
        ),
    )
)


@given(w=MATRICES, weights=WEIGHTS, scale_dtype=st.sampled_from(["float32", "bfloat16"]))
def test_every_weight_is_within_half_a_step(w: np.ndarray, weights: Any, scale_dtype: str) -> None:
    kind, group = weights
    qw = quantize(w, kind, group, scale_dtype=scale_dtype)
    error = np.abs(exact_weights(qw) - w.astype(np.float64))
    assert (error <= quantization_error_bound(qw)).all()


@given(w=MATRICES, weights=WEIGHTS, power=st.integers(-20, 20))
def test_a_power_of_two_changes_the_scales_alone(w: np.ndarray, weights: Any, power: int) -> None:
    w = np.where(np.abs(w) < 1e-20, 0, w)  # far from where scales are cut off
    kind, group = weights
    a, b = quantize(w, kind, group), quantize(np.ldexp(w, power), kind, group)
    np.testing.assert_array_equal(a.data.view(np.uint8), b.data.view(np.uint8))
    zero = (a.scales == 1) & (b.scales == 1)
    np.testing.assert_array_equal(np.where(zero, 1, np.ldexp(a.scales, power)), b.scales)


@given(w=MATRICES, weights=WEIGHTS)
def test_quantising_again_changes_no_stored_number(w: np.ndarray, weights: Any) -> None:
    kind, group = weights
    once = quantize(w, kind, group)
    again = quantize(dequantize(once), kind, group)
    a, b = (
        unpack_int4(q.data) if kind == "int4" else q.data.astype(np.float32) for q in (once, again)
    )
    np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("kind", KINDS)
def test_the_largest_weight_of_a_group_gets_the_largest_number(kind: Any) -> None:
    w = np.random.default_rng(0).standard_normal((256, 3)).astype(np.float32)
    qw = quantize(w, kind, 128)
    stored = unpack_int4(qw.data) if kind == "int4" else qw.data.astype(np.float32)
    largest = np.abs(stored[:3].reshape(3, 2, 128)).max(-1)
    np.testing.assert_array_equal(largest, np.full((3, 2), LARGEST[kind]))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("group", [None, 128])
def test_layouts_types_stacks_and_chunks_agree(
    kind: Any, group: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(1)
    w = rng.standard_normal((2, 200, 70)).astype(ml_dtypes.bfloat16)
    stack = quantize(w, kind, group)
    monkeypatch.setattr(rows, "_CHUNK_BYTES", 4 * 4 * 256 * 7)  # seven columns at a time
    others = [quantize(np.swapaxes(w, 1, 2), kind, group, w_layout="nk")]
    others += [quantize(w.astype(np.float32), kind, group), quantize(jnp.asarray(w), kind, group)]
    others += [quantize(w.astype(np.float64), kind, group), quantize(to_host(w), kind, group)]
    for other in others:
        np.testing.assert_array_equal(stack.data.view(np.uint8), other.data.view(np.uint8))
        np.testing.assert_array_equal(stack.scales, other.scales)
    for layer in range(2):
        one = quantize(w[layer], kind, group)
        np.testing.assert_array_equal(stack.data[layer].view(np.uint8), one.data.view(np.uint8))
    assert isinstance(stack.data, np.ndarray)
    np.testing.assert_array_equal(
        dequantize(stack), np.swapaxes(dequantize(stack, w_layout="nk"), 1, 2)
    )
    assert dequantize(stack).shape == w.shape


def test_padding_is_zero_with_a_scale_of_one() -> None:
    qw = quantize(np.ones((130, 65), np.float32), "int4", 256)
    assert qw.data.shape == (128, 128)
    assert qw.scales.shape == (1, 128)
    stored = unpack_int4(qw.data)
    assert (stored[:65, :130] == 7).all()
    assert not stored[65:].any()
    assert not stored[:, 130:].any()
    assert (qw.scales[:, 65:] == 1).all()


def test_zeros_and_the_smallest_numbers_are_safe() -> None:
    w = np.zeros((128, 3), np.float32)
    w[5, 1], w[6, 2] = 1e-45, 1e-38
    for kind in KINDS:
        qw = quantize(w, kind)
        assert np.isfinite(dequantize(qw)).all()
        assert (qw.scales >= np.finfo(np.float32).tiny).all()  # no subnormal: GPUs may flush them
        assert (np.abs(exact_weights(qw) - w) <= quantization_error_bound(qw)).all()
        assert qw.scales[0, 0] == 1


@given(arrays(np.int8, (3, 256), elements=st.integers(-8, 7)))
def test_int4_is_packed_in_half_the_bytes_and_back(values: np.ndarray) -> None:
    packed = pack_int4(values)
    assert packed.nbytes == values.nbytes // 2
    np.testing.assert_array_equal(unpack_int4(packed), values)
    np.testing.assert_array_equal(np.asarray(unpack_int4(jnp.asarray(packed))), values)
    assert int(packed[0, 3]) & 15 == int(values[0, 3]) & 15
    assert int(packed[0, 3]) >> 4 == int(values[0, 67])


W = np.ones((128, 64), np.float32)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": "int3"}, "kind='int3': expected one of int8, float8_e4m3fn, int4"),
        ({"group": 100}, "group=100: expected None or a multiple of 32 for kind='int8'"),
        ({"group": 48, "kind": "int4"}, "group=48: expected None or a multiple of 32"),
        ({"group": True}, "group=True"),
        ({"group": 0}, "group=0"),
        ({"group": 256}, "group=256: expected at most K=128"),
        ({"w_layout": "mn"}, "w_layout='mn': expected 'kn'"),
        ({"scale_dtype": "float16"}, "scale_dtype='float16': expected one of float32, bfloat16"),
        ({"w": W[0]}, "w of shape 64: expected a matrix"),
        ({"w": W[:0]}, "none empty"),
        ({"w": W.astype(np.int32)}, "w of dtype int32: expected one of bfloat16"),
        ({"w": [1.0]}, "w of type list: expected a concrete array"),
        ({"w": np.full((128, 64), 1e300)}, "expected finite weights within the range of float32"),
    ],
)
def test_wrong_use(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        inspect.unwrap(quantize)(**{"w": W, **change})  # without jaxtyping's checks


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_weights_that_are_not_finite_are_named(bad: float) -> None:
    w = np.ones((2, 128, 64), np.float32)
    w[1, 70, 5] = bad
    with pytest.raises(ValueError, match=rf"w holds {bad} at layer 1, k=70, n=5"):
        quantize(w, "int8", 64)
