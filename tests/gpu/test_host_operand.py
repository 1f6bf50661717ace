"""A kernel reads host memory itself: the right values, with no copy made by XLA."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.host_memory import placement_report
from pallas_kernels.hybrid_gemm import hybrid_gemm
from tests.gpu.exact import BACKEND, activations, assert_exact, weights

pytestmark = pytest.mark.gpu

K, N = 4096, 8192


def test_the_weights_stay_where_they_are() -> None:
    x, (w, host) = activations(64, K), weights(K, N, layers=4)
    assert placement_report(host).bytes_by_kind == {"pinned_host": w.nbytes}
    run: Any = jax.jit(lambda x, w: hybrid_gemm(x, w, 1.0, layer=1, backend=BACKEND))
    memory = run.lower(jnp.asarray(x), host).compile().memory_analysis()
    assert memory.host_argument_size_in_bytes == w.nbytes
    assert memory.temp_size_in_bytes < w.nbytes // 16
    device, a = jax.devices()[0], jnp.asarray(x)
    jax.block_until_ready(hybrid_gemm(a, host, 1.0, layer=0, backend=BACKEND))
    before = device.memory_stats()["peak_bytes_in_use"]
    out = hybrid_gemm(a, host, 1.0, layer=3, backend=BACKEND)
    jax.block_until_ready(out)
    assert device.memory_stats()["peak_bytes_in_use"] - before < w.nbytes // 16
    assert_exact(out, x, w[3])


def test_layers_in_a_scan_take_no_copy() -> None:
    size, layers = 2048, 8
    w, host = weights(size, size, layers=layers)

    @jax.jit
    def run(x: Any, w: Any) -> Any:
        def step(h: Any, layer: Any) -> tuple[Any, None]:
            return hybrid_gemm(h, w, 1.0, layer=layer, backend=BACKEND), None

        return jax.lax.scan(step, x, jnp.arange(layers, dtype=jnp.int32))[0]

    x = activations(32, size)
    memory = run.lower(jnp.asarray(x), host).compile().memory_analysis()
    assert memory.temp_size_in_bytes < w.nbytes // 16
    expected = x.astype(np.float64)
    for layer in range(layers):
        expected = (expected @ w[layer].astype(np.float64)).astype(x.dtype).astype(np.float64)
    got = np.asarray(run(jnp.asarray(x), host), np.float64)
    # each layer rounds to 8 bits, and passes on the rounding of those before
    assert np.linalg.norm(got - expected) < layers * 2**-8 * np.linalg.norm(expected)
