"""Weights of fewer bits at real sizes, against float64 products of the dequantised numbers."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels import quantized_gemm as quantized
from tests.gpu.exact import BACKEND, activations, numbers, placed, sampled

pytestmark = pytest.mark.gpu

K, N = 4096, 6144


@pytest.mark.parametrize("m", [1, 8, 16, 64, 100, 512])
@pytest.mark.parametrize(
    ("kind", "group"),
    [
        *(("int8", None), ("int8", 32), ("int8", 128), ("float8_e4m3fn", None)),
        *(("int4", None), ("int4", 32), ("int4", 128)),
    ],
)
def test_products(kind: str, group: int | None, m: int) -> None:
    stored = numbers((K, N), "float32", 1, K**-0.5)
    packed = quantized.quantize(stored, kind, group=group, w_layout="kn")
    x = activations(m, K)
    exact = np.asarray(quantized.dequantize(packed), np.float64)
    agrees(x, packed, exact, np.abs(exact))


@pytest.mark.parametrize("m", [1, 16, 64, 100, 300])
@pytest.mark.parametrize(("kind", "group"), [("int4", 32), ("int8", 32), ("int8", 96)])
def test_products_with_offsets(kind: str, group: int, m: int) -> None:
    draw = np.random.default_rng(7)
    low, high = (-8, 8) if kind == "int4" else (-128, 128)
    groups = (N, -(-K // group))
    scales = draw.uniform(0.5, 1.5, groups).astype(np.float16)
    packed = quantized.from_integers(
        draw.integers(low, high, (N, K)).astype(np.int8),
        scales,
        (scales * draw.uniform(low, high, groups)).astype(np.float32),
        kind=kind,
        group=group,
        scale_dtype="float16",
    )
    exact = np.asarray(quantized.dequantize(packed), np.float64)
    agrees(activations(m, K), packed, exact, quantized.magnitudes(packed))


@pytest.mark.parametrize("alpha", [0.0, 0.4, 1.0])
@pytest.mark.parametrize("cluster", [1, 2])
@pytest.mark.parametrize(("kind", "group"), [("int8", None), ("int4", 128), ("int4", 32)])
def test_every_dataflow(kind: str, group: int | None, cluster: int, alpha: float) -> None:
    """More rows than one reading of W serves: AsymGEMM, with several K passes, and the hybrid."""
    packed = quantized.quantize(numbers((K, N), "float32", 1, K**-0.5), kind, group=group)
    exact = np.asarray(quantized.dequantize(packed), np.float64)
    agrees(activations(1100, K), packed, exact, np.abs(exact), alpha=alpha, cluster=cluster)


def agrees(
    x: np.ndarray, packed: Any, exact: np.ndarray, magnitudes: np.ndarray, **options: Any
) -> None:
    """Assert that a product over weights in host memory is near the exact one.

    Args:
      x: activations.
      packed: weights.
      exact: the same, [K, N].
      magnitudes: what their errors are in proportion to, [K, N].
      **options: of the op.
    """
    m = len(x)
    out: Any = quantized.quantized_gemm(jnp.asarray(x), placed(packed), backend=BACKEND, **options)
    rows, columns = sampled(m, 2), sampled(N, 3)
    a, b = x[rows].astype(np.float64), exact[:, columns]
    got = np.asarray(out, np.float64)[rows][:, columns]
    # the kernel multiplies exact bf16 numbers and sums K of them in float32; scales and the result
    # are rounded once each, to 8 bits at worst
    bound = (2.0 * K * 2.0**-24 + 2 * 2.0**-8) * (np.abs(a) @ np.abs(b))
    bound += 2.0 * (K + 3) * 2.0**-24 * (np.abs(a) @ magnitudes[:, columns])
    assert np.isfinite(got).all()
    assert (np.abs(got - a @ b) <= bound).all()
    # and not merely small: the error of a right product is far below its size
    assert np.linalg.norm(got - a @ b) < 2.0**-6 * np.linalg.norm(a @ b)
