"""Strips of W in device memory on the device: every share, one executable, filled on the way."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

from pallas_kernels.gemm import Resident
from pallas_kernels.hybrid_gemm import hybrid_gemm
from tests.gpu.exact import BACKEND, activations, assert_exact, placed, same_bits, weights

pytestmark = [pytest.mark.gpu, pytest.mark.host_read("either")]

K, N = 4096, 6144
SHARES = (0, 256, 3072, N)


def run(a: jax.Array, host: Any, alpha: float, resident: Resident, **options: Any) -> Any:
    return hybrid_gemm(a, host, alpha, w_layout="nk", resident=resident, backend=BACKEND, **options)


@pytest.mark.parametrize("cluster", [1, 4])
@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("m", [8, 600])
def test_any_share_is_exact_and_comes_from_the_cache(m: int, alpha: float, cluster: int) -> None:
    x, (w, _) = activations(m, K), weights(K, N)
    stored = w.T.copy()
    cache, a = jnp.asarray(stored), jnp.asarray(x)
    for columns in SHARES:
        spoilt = stored.copy()
        spoilt[:columns] = float("nan")  # seen if it is read from the host
        given = Resident(cache=cache, columns=columns)
        assert_exact(run(a, placed(spoilt), alpha, given, cluster=cluster), x, w)


@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("m", [8, 600])
def test_a_launch_fills_the_cache(m: int, alpha: float) -> None:
    x, (w, _) = activations(m, K), weights(K, N)
    stored = w.T.copy()
    cache = jax.new_ref(jnp.zeros((N, K), jnp.bfloat16))
    given = Resident(cache=cache, columns=0, fill=N)
    assert_exact(run(jnp.asarray(x), placed(stored), alpha, given), x, w)
    assert same_bits(cache[...], stored)
