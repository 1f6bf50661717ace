"""Long prefills: M = 10240, the order of K passes under load, repeatability bit for bit."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

from pallas_kernels.hybrid_gemm import hybrid_gemm
from tests.gpu.exact import (
    BACKEND,
    activations,
    assert_everywhere,
    assert_exact,
    poisoned,
    same_bits,
    weights,
)

pytestmark = pytest.mark.gpu

M, K, N = 10240, 4096, 16384  # the paper's Fig. 4
LAUNCHES = 50


def run(alpha: float, out_dtype: str = "bfloat16", **options: Any) -> Any:
    x, (_, host) = activations(M, K), weights(K, N)
    a = jnp.asarray(x)
    return poisoned(
        lambda: hybrid_gemm(a, host, alpha, out_dtype=out_dtype, backend=BACKEND, **options),
        (M, N),
        out_dtype,
    )


@pytest.mark.parametrize("alpha", [0.0, 0.25, 0.5, 0.75, 1.0])
@pytest.mark.parametrize("cluster", [1, 8])
def test_values(alpha: float, cluster: int) -> None:
    out = run(alpha, cluster=cluster)
    x, (w, _) = activations(M, K), weights(K, N)
    assert_exact(out, x, w)
    assert_everywhere(out, x, w)


@pytest.mark.parametrize(
    ("alpha", "option"),
    [
        (1.0, {"cluster": 2}),
        (1.0, {"cluster": 4}),
        (0.5, {"sm_limit": 16}),
        (0.5, {"sm_limit": 56}),
    ],
)
def test_other_clusters_and_slices(alpha: float, option: dict[str, int]) -> None:
    x, (w, _) = activations(M, K), weights(K, N)
    assert_everywhere(run(alpha, **option), x, w)


@pytest.mark.parametrize("alpha", [0.0, 0.5])
def test_float32_sums(alpha: float) -> None:
    x, (w, _) = activations(M, K), weights(K, N)
    out = run(alpha, "float32")
    assert_exact(out, x, w)
    assert_everywhere(out, x, w)


@pytest.mark.parametrize(("alpha", "cluster"), [(0.0, 1), (0.5, 1), (0.5, 8)])
def test_every_launch_gives_the_same_bits(alpha: float, cluster: int) -> None:
    """A K pass that overtakes the one before would change the last bits, now and then."""
    first = run(alpha, cluster=cluster)
    for launch in range(LAUNCHES):
        assert same_bits(first, run(alpha, cluster=cluster)), f"launch {launch} differs"


def test_the_same_bits_while_other_work_runs() -> None:
    """Copies and products enqueued around the launches disturb their timing."""
    x, (_, host) = activations(M, K), weights(K, N)
    a = jnp.asarray(x)
    square: Any = jax.jit(lambda y: jnp.matmul(y, y.T, preferred_element_type=jnp.bfloat16)[:, :K])
    first = jax.block_until_ready(hybrid_gemm(a, host, 0.0, backend=BACKEND))
    for launch in range(LAUNCHES // 2):
        noise = [square(a), jax.device_put(x)]
        out = hybrid_gemm(a, host, 0.0, backend=BACKEND)
        noise.append(square(a))
        assert same_bits(first, out), f"launch {launch} differs"
        jax.block_until_ready(noise)
