"""Small products that say in a minute what works here: XLA, JAX's own kernel, ours, host memory.

In this order, so that the first that goes wrong names the cause. Small on purpose: a kernel that
hangs or is wrong shows it here, before anything is measured.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels import attention, check_gemm
from pallas_kernels import gather_rows as gathering
from pallas_kernels import grouped_gemm as grouped
from pallas_kernels import quantized_gemm as quantized
from pallas_kernels.host_memory import SharedPool, placement_report, remove_pool, shared_memory_path
from pallas_kernels.hybrid_gemm import hybrid_gemm
from tests.gpu.exact import BACKEND, activations, numbers, placed, same_bits, weights

pytestmark = pytest.mark.gpu
either = pytest.mark.host_read("either")
host_only = pytest.mark.host_read("only")

K, N = 1024, 1536


def assert_right(out: Any, x: np.ndarray, w: np.ndarray) -> None:
    found = check_gemm(np.asarray(out), x, w)
    assert found.worst_ratio <= 1, str(found)


def check(m: int, alpha: float, k: int = K, n: int = N, **options: Any) -> None:
    x, (w, stored) = activations(m, k), weights(k, n)
    assert_right(hybrid_gemm(jnp.asarray(x), stored, alpha, backend=BACKEND, **options), x, w)


def test_xla() -> None:
    x, w = activations(64, K), numbers((K, N), "bfloat16", 1, K**-0.5)
    assert_right(jnp.matmul(jnp.asarray(x), jnp.asarray(w)), x, w)


def test_jax_own_kernel() -> None:
    if BACKEND != "sm90":
        pytest.skip("JAX's kernel for Hopper runs on no CPU")
    from jax.experimental.pallas.ops.gpu import hopper_matmul_mgpu as theirs

    x, w = activations(256, K), numbers((K, N), "bfloat16", 1, K**-0.5)
    tiles = theirs.TuningConfig(tile_m=128, tile_n=128, tile_k=64, max_concurrent_steps=4)
    assert_right(theirs.matmul(jnp.asarray(x), jnp.asarray(w), None, tiles), x, w)


@pytest.mark.parametrize("alpha", [1.0, 0.0])
def test_device_memory(alpha: float) -> None:
    x, w = activations(64, K), numbers((K, N), "bfloat16", 1, K**-0.5)
    out = hybrid_gemm(jnp.asarray(x), jnp.asarray(w), alpha, backend=BACKEND)
    assert_right(out, x, w)


@host_only
@pytest.mark.parametrize("alpha", [1.0, 0.0])
def test_host_memory(alpha: float) -> None:
    w = numbers((K, N), "bfloat16", 1, K**-0.5)
    x, host = activations(64, K), placed(w, "host")
    assert placement_report(host).bytes_by_kind == {"pinned_host": w.nbytes}
    run: Any = jax.jit(lambda x, w: hybrid_gemm(x, w, alpha, backend=BACKEND))
    assert_right(run(jnp.asarray(x), host), x, w)


def test_attention() -> None:
    q, k, v = (jnp.asarray(numbers((1, 256, heads, 64), "bfloat16", heads)) for heads in (4, 2, 2))
    out = attention.prefill_attention(q, k, v, causal=True, backend=BACKEND)
    right = jax.nn.dot_product_attention(q, k, v, is_causal=True)
    error = np.asarray(out, np.float64) - np.asarray(right, np.float64)
    assert np.linalg.norm(error) < 2.0**-6 * np.linalg.norm(np.asarray(right, np.float64))


@either
def test_gather() -> None:
    table = numbers((1000, K), "bfloat16", 1)
    ids = np.array([0, 999, 7, 7, 500], np.int32)
    out = gathering.gather_rows(placed(table), jnp.asarray(ids), backend=BACKEND)
    assert same_bits(out, jnp.asarray(table[ids]))


@host_only
def test_shared_pool() -> None:
    x, w = activations(8, K), numbers((K, N), "bfloat16", 1, K**-0.5)
    path = Path(shared_memory_path("c2c-gpu-smoke"))
    if path.exists():
        remove_pool(path)
    with SharedPool.create(path, {"w": w}) as pool:
        host = pool.array("w")
        out = jax.block_until_ready(hybrid_gemm(jnp.asarray(x), host, 1.0, backend=BACKEND))
        assert_right(out, x, w)
        del host
        pool.close(remove=True)


@either
def test_both_dataflows() -> None:
    check(64, 0.5)


@either
@pytest.mark.parametrize("cluster", [2, 4])
def test_cluster(cluster: int) -> None:
    check(512, 0.5, cluster=cluster)


@either
def test_ragged() -> None:
    check(37, 0.5, k=K + 64, n=N + 64)


@either
def test_quantised() -> None:
    packed = quantized.quantize(numbers((K, N), "float32", 1, K**-0.5), "int4", group=32)
    x, exact = activations(16, K), np.asarray(quantized.dequantize(packed), np.float64)
    out: Any = quantized.quantized_gemm(jnp.asarray(x), placed(packed), backend=BACKEND)
    right = x.astype(np.float64) @ exact
    assert np.linalg.norm(np.asarray(out, np.float64) - right) < 2.0**-6 * np.linalg.norm(right)


@either
def test_grouped() -> None:
    sizes = np.array([5, 0, 33, 2], np.int32)
    w, x = numbers((4, 512, 256), "bfloat16", 1, 512**-0.5), activations(int(sizes.sum()), 512)
    out = np.asarray(
        grouped.grouped_gemm(jnp.asarray(x), placed(w), jnp.asarray(sizes), backend=BACKEND)
    )
    ends = np.cumsum(sizes)
    for expert in np.flatnonzero(sizes):
        of = slice(int(ends[expert] - sizes[expert]), int(ends[expert]))
        assert check_gemm(out[of], x[of], w[expert]).worst_ratio <= 1, f"expert {expert}"
