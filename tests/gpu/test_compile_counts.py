"""alpha, SM split, layer and sm_limit are run-time values: nothing compiles again for them."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

from pallas_kernels.hybrid_gemm import hybrid_gemm
from tests.compilations import compilations
from tests.gpu.exact import BACKEND, activations, weights

pytestmark = pytest.mark.gpu

K = N = 2048


def test_run_time_values_do_not_recompile() -> None:
    x = jnp.asarray(activations(256, K))
    _, host = weights(K, N, layers=3)

    def run(alpha: float, **options: Any) -> None:
        jax.block_until_ready(
            hybrid_gemm(x, host, alpha, cluster=2, backend=BACKEND, **{"layer": 0} | options)
        )

    run(0.5)
    with compilations() as seen:
        for alpha in (0.0, 0.1, 0.9, 1.0):
            run(alpha)
        run(0.5, sm_split=8)
        run(0.5, sm_limit=16)
        for layer in (1, 2):
            run(0.5, layer=layer)
    assert seen == []
    with compilations() as seen:  # the positive control
        jax.block_until_ready(hybrid_gemm(x, host, 0.5, layer=0, cluster=4, backend=BACKEND))
    assert len(seen) >= 1
