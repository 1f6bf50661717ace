"""Ten small products that say in a minute whether kernels over host memory work at all.

Small on purpose: a kernel that hangs or is wrong shows it here, before anything is measured.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels import check_gemm
from pallas_kernels import grouped_gemm as grouped
from pallas_kernels import quantized_gemm as quantized
from pallas_kernels.host_memory import placement_report, to_host
from pallas_kernels.hybrid_gemm import hybrid_gemm
from tests.gpu.exact import BACKEND, activations, numbers, weights

pytestmark = pytest.mark.gpu

K, N = 1024, 1536


def check(m: int, alpha: float, k: int = K, n: int = N, **options: Any) -> None:
    x, (w, host) = activations(m, k), weights(k, n)
    out = np.asarray(hybrid_gemm(jnp.asarray(x), host, alpha, backend=BACKEND, **options))
    assert out.shape == (m, n)
    found = check_gemm(out, x, w)
    assert found.worst_ratio <= 1, str(found)


def test_host_operand() -> None:
    x, (w, host) = activations(64, K), weights(K, N)
    assert placement_report(host).bytes_by_kind == {"pinned_host": w.nbytes}
    run: Any = jax.jit(lambda x, w: hybrid_gemm(x, w, 1.0, backend=BACKEND))
    out = np.asarray(run(jnp.asarray(x), host))
    assert check_gemm(out, x, w).worst_ratio <= 1


@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0])
def test_alpha(alpha: float) -> None:
    check(64, alpha)


@pytest.mark.parametrize("cluster", [1, 2, 4])
def test_cluster(cluster: int) -> None:
    check(512, 0.5, cluster=cluster)


def test_ragged() -> None:
    check(37, 0.5, k=K + 64, n=N + 64)


def test_quantised() -> None:
    packed = quantized.quantize(numbers((K, N), "float32", 1, K**-0.5), "int4", group=32)
    x, exact = activations(16, K), np.asarray(quantized.dequantize(packed), np.float64)
    out: Any = quantized.quantized_gemm(jnp.asarray(x), to_host(packed), backend=BACKEND)
    right = x.astype(np.float64) @ exact
    assert np.linalg.norm(np.asarray(out, np.float64) - right) < 2.0**-6 * np.linalg.norm(right)


def test_grouped() -> None:
    sizes = np.array([5, 0, 33, 2], np.int32)
    w, x = numbers((4, 512, 256), "bfloat16", 1, 512**-0.5), activations(int(sizes.sum()), 512)
    out = np.asarray(
        grouped.grouped_gemm(jnp.asarray(x), to_host(w), jnp.asarray(sizes), backend=BACKEND)
    )
    ends = np.cumsum(sizes)
    for expert in np.flatnonzero(sizes):
        of = slice(int(ends[expert] - sizes[expert]), int(ends[expert]))
        assert check_gemm(out[of], x[of], w[expert]).worst_ratio <= 1, f"expert {expert}"
