"""Weights of fewer bits at real sizes, against float64 products of the dequantised numbers."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.host_memory import to_host
from tests.gpu.exact import BACKEND, activations, numbers, sampled

quantized = pytest.importorskip(
    "pallas_kernels.quantized_gemm", reason="quantized_gemm is not in this checkout"
)

pytestmark = pytest.mark.gpu

K, N = 4096, 6144


@pytest.mark.parametrize("m", [1, 8, 16, 64, 100, 512])
@pytest.mark.parametrize(
    ("kind", "group"),
    [("int8", None), ("int8", 128), ("float8_e4m3fn", None), ("int4", None), ("int4", 128)],
)
def test_products(kind: str, group: int | None, m: int) -> None:
    stored = numbers((K, N), "float32", 1, K**-0.5)
    packed = quantized.quantize(stored, kind, group=group, w_layout="kn")
    x = activations(m, K)
    out: Any = quantized.quantized_gemm(jnp.asarray(x), to_host(packed), backend=BACKEND)
    exact = np.asarray(quantized.dequantize(packed), np.float64)
    exact = exact.T if exact.shape == (N, K) else exact
    rows, columns = sampled(m, 2), sampled(N, 3)
    a, b = x[rows].astype(np.float64), exact[:, columns]
    got = np.asarray(out, np.float64)[rows][:, columns]
    # the kernel multiplies exact bf16 numbers and sums K of them in float32; scales and the result
    # are rounded once each, to 8 bits at worst
    bound = (2.0 * K * 2.0**-24 + 2 * 2.0**-8) * (np.abs(a) @ np.abs(b))
    assert np.isfinite(got).all()
    assert (np.abs(got - a @ b) <= bound).all()
    # and not merely small: the error of a right product is far below its size
    assert np.linalg.norm(got - a @ b) < 2.0**-6 * np.linalg.norm(a @ b)
