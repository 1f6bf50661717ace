"""hybrid_gemm on the device: dataflows, clusters, splits, layers, layouts, types, slices."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.gemm import FAMILY, Gemm, choose, present_machine
from pallas_kernels.hybrid_gemm import hybrid_gemm, pack_weights
from tests.gpu.exact import (
    BACKEND,
    activations,
    assert_everywhere,
    assert_exact,
    numbers,
    placed,
    poisoned,
    same_bits,
    transposed,
    weights,
)

pytestmark = pytest.mark.gpu

K, N = 4096, 6144
ROWS = (1, 5, 8, 64, 100, 128, 129, 512, 1000, 2001)
ALPHAS = (0.0, 0.3, 0.5, 1.0)


def check(m: int, alpha: float, k: int = K, n: int = N, **options: Any) -> Any:
    x, (w, host) = activations(m, k), weights(k, n)
    a = jnp.asarray(x)
    out = poisoned(lambda: hybrid_gemm(a, host, alpha, backend=BACKEND, **options), (m, n), a.dtype)
    assert_exact(out, x, w)
    assert_everywhere(out, x, w)
    return out


@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize("m", ROWS)
def test_rows_and_alphas(m: int, alpha: float) -> None:
    check(m, alpha)


@pytest.mark.parametrize("alpha", [0.4, 1.0])
@pytest.mark.parametrize("cluster", [2, 4, 8])
@pytest.mark.parametrize("m", [64, 512, 2001])
def test_clusters(m: int, cluster: int, alpha: float) -> None:
    check(m, alpha, cluster=cluster)


@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize("cluster", [1, 4])
@pytest.mark.parametrize("m", [64, 1000])
def test_warpgroups_in_turn(m: int, cluster: int, alpha: float) -> None:
    sms = present_machine().sm_count // cluster * cluster
    config = replace(FAMILY["128x128, ping-pong"], cluster=cluster, sm_count=sms)
    check(m, alpha, config=config)


@pytest.mark.parametrize("sm_split", [4, 16, 64, 128])
def test_splits_of_the_sms(sm_split: int) -> None:
    check(600, 0.5, sm_split=sm_split, cluster=4)


@pytest.mark.parametrize("sm_limit", [2, 16, 28, 56, 131])
@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0])
def test_emulated_slices(sm_limit: int, alpha: float) -> None:
    check(300, alpha, sm_limit=sm_limit)


@pytest.mark.parametrize("cluster", [1, 2])
@pytest.mark.parametrize("m", [8, 64])
def test_sums_in_memory_that_held_those_of_another_strip(m: int, cluster: int) -> None:
    """Few rows, many strips a CTA: a line of old sums that L1 still had would be added instead."""
    check(m, 0.0, cluster=cluster, sm_limit=2 * cluster)


@pytest.mark.parametrize(
    ("n", "k"),
    [*((n, K) for n in (64, 128, 192, 16064)), *((1024, k) for k in (64, 448, 4160, 14336))],
)
def test_short_and_uneven_sizes(n: int, k: int) -> None:
    check(256, 1.0, k=k, n=n)
    check(256, 0.0, k=k, n=n)


@pytest.mark.parametrize("alpha", ALPHAS)
def test_transposed_weights_give_the_same_bits(alpha: float) -> None:
    x, (w, host) = activations(384, K), weights(K, N)
    a = jnp.asarray(x)
    config = choose(Gemm(m=384, k=K, n=N), present_machine())
    options = {"config": config, "backend": BACKEND}
    out = hybrid_gemm(a, transposed(K, N), alpha, w_layout="nk", **options)
    assert_exact(out, x, w)
    assert same_bits(out, hybrid_gemm(a, host, alpha, **options))


@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize(
    ("dtype", "out"), [("float16", None), ("float16", "float32"), ("bfloat16", "float32")]
)
def test_types(dtype: str, out: str | None, alpha: float) -> None:
    m, k, n = 384, 2048, 3072
    x, (w, host) = activations(m, k, dtype), weights(k, n, dtype)
    got = hybrid_gemm(jnp.asarray(x), host, alpha, out_dtype=out, backend=BACKEND)
    assert str(got.dtype) == (out or dtype)
    assert_exact(got, x, w)
    assert_everywhere(got, x, w)


@pytest.mark.parametrize("alpha", ALPHAS)
def test_layers(alpha: float) -> None:
    layers, k, n = 3, 2048, 2048
    x, (w, host) = activations(200, k), weights(k, n, layers=layers)
    for layer in range(layers):
        out = hybrid_gemm(jnp.asarray(x), host, alpha, layer=layer, backend=BACKEND)
        assert_exact(out, x, w[layer])


def test_padded_weights() -> None:
    k, n = 1000, 1500
    x, w = activations(70, k), numbers((k, n), "bfloat16", 1, k**-0.5)
    packed = pack_weights(w)
    host = jax.tree.map(placed, packed)
    for alpha in ALPHAS:
        out = hybrid_gemm(jnp.asarray(x), host, alpha, backend=BACKEND)
        assert out.shape == (70, n)
        assert_exact(out, x, w)


def test_random_shapes_alphas_and_splits() -> None:
    draw = np.random.default_rng(7)
    for _ in range(12):
        m = int(draw.integers(1, 1200))
        k, n = (64 * int(draw.integers(1, 40)) for _ in range(2))
        cluster = int(draw.choice([1, 2, 4, 8]))
        limit = int(draw.integers(2 * cluster, 133))
        check(m, float(draw.random()), k=k, n=n, cluster=cluster, sm_limit=limit)
