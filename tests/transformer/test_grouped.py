"""Experts multiplied by XLA: few rows, one by one, and many."""

import jax
import numpy as np
import pytest

from c2c.transformer.layers.grouped_gemm import grouped_matmul


@pytest.mark.parametrize(
    ("rows", "sizes"),
    [(2, [0, 1, 0, 1]), (9, [3, 0, 4, 1]), (3, [0, 0, 0, 0]), (16, [0, 16, 0, 0]), (40, [9, 9, 9])],
)
def test_each_row_meets_its_group(rows: int, sizes: list[int]) -> None:
    rng = np.random.default_rng(rows)
    x = rng.standard_normal((rows, 24), np.float32)
    w = rng.standard_normal((len(sizes), 10, 24), np.float32)
    groups = np.repeat(np.arange(len(sizes)), sizes)
    expected = np.zeros((rows, 10))
    for row, group in enumerate(groups):
        expected[row] = w[group].astype(np.float64) @ x[row]
    found = jax.jit(grouped_matmul)(x, w, np.array(sizes, np.int32))
    np.testing.assert_allclose(found, expected, atol=2e-5)
