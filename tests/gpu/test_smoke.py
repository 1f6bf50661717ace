"""Small products that say in a minute what works here: XLA, JAX's own kernel, ours, host memory."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels import check_gemm
from pallas_kernels.host_memory import placement_report
from pallas_kernels.hybrid_gemm import hybrid_gemm
from tests.gpu.exact import BACKEND, activations, numbers, placed, weights

# In this order, so that the first that goes wrong names the cause; small, as a kernel may hang.
pytestmark = pytest.mark.gpu

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


@pytest.mark.parametrize("alpha", [1.0])
def test_device_memory(alpha: float) -> None:
    x, w = activations(64, K), numbers((K, N), "bfloat16", 1, K**-0.5)
    out = hybrid_gemm(jnp.asarray(x), jnp.asarray(w), alpha, backend=BACKEND)
    assert_right(out, x, w)


@pytest.mark.parametrize("alpha", [1.0, 0.0])
def test_host_memory(alpha: float) -> None:
    w = numbers((K, N), "bfloat16", 1, K**-0.5)
    x, host = activations(64, K), placed(w)
    assert placement_report(host).bytes_by_kind == {"pinned_host": w.nbytes}
    run: Any = jax.jit(lambda x, w: hybrid_gemm(x, w, alpha, backend=BACKEND))
    assert_right(run(jnp.asarray(x), host), x, w)


def test_both_dataflows() -> None:
    check(64, 0.5)
