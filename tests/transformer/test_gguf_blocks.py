"""Unpacked blocks: the library's numbers bit for bit, and what requantising costs."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType
from hypothesis import given
from hypothesis import strategies as st

from c2c.transformer.gguf.blocks import QUANTIZED_KINDS, centred, unpack
from tests.transformer.gguf_files import dequantized, quantised_rows

EPS = float(np.finfo(np.float32).eps)
RANGES = {"Q4_0": (-8, 7), "Q4_1": (0, 15), "Q8_0": (-128, 127), "Q4_K": (0, 15), "Q6_K": (-32, 31)}
kinds = st.sampled_from(QUANTIZED_KINDS)


@given(kind=kinds, seed=st.integers(0, 999), rows=st.integers(1, 5), blocks=st.integers(1, 3))
def test_same_bits_as_the_library(kind: str, seed: int, rows: int, blocks: int) -> None:
    number = GGMLQuantizationType[kind]
    packed = quantised_rows(np.random.default_rng(seed), number, rows, 256 * blocks)
    parts = unpack(packed, number)
    np.testing.assert_array_equal(dequantized(parts), gguf.dequantize(packed, number))
    low, high = RANGES[kind]
    assert low <= parts.values.min()
    assert parts.values.max() <= high
    assert parts.values.dtype == np.int8


def test_long_matrices_are_unpacked_in_parts() -> None:
    kind = GGMLQuantizationType.Q4_1
    packed = quantised_rows(np.random.default_rng(3), kind, 5000, 512)  # 1.6 MB: two parts
    parts = unpack(packed, kind)
    np.testing.assert_array_equal(dequantized(parts), gguf.dequantize(packed, kind))


@pytest.mark.parametrize("kind", ["Q4_1", "Q4_K"])
def test_centred_products_are_exact_in_two_parts(kind: str) -> None:
    number = GGMLQuantizationType[kind]
    rng = np.random.default_rng(4)
    parts = unpack(quantised_rows(rng, number, 8, 512), number)
    moved = centred(parts)
    assert moved.minima is not None
    assert parts.minima is not None
    assert (moved.values.min(), moved.values.max()) == (-8, 7)
    x = rng.normal(size=(3, 512))
    scaled = moved.values.reshape(8, -1, 32) * moved.scales.astype(np.float64)[:, :, None]
    sums = x.reshape(3, -1, 32).sum(axis=2)
    product = x @ scaled.reshape(8, 512).T + sums @ moved.minima.astype(np.float64).T
    exact = x @ (
        parts.values.reshape(8, -1, 32) * parts.scales.astype(np.float64)[:, :, None]
        + parts.minima[:, :, None]
    ).reshape(8, 512).T  # fmt: skip
    # The one rounding, of the minima: half an ulp of them, times the sums.
    bound = np.abs(sums) @ (EPS * np.abs(moved.minima.astype(np.float64))).T + 1e-12
    assert (np.abs(product - exact) <= bound).all()
    assert centred(moved) is moved
