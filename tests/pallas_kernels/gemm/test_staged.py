"""Weights staged by copy engine: exact results from pieces, and the choice against the kernel."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from pallas_kernels import check_gemm
from pallas_kernels.gemm import MACHINES, Gemm, choice
from pallas_kernels.gemm.layout import tile_major
from pallas_kernels.gemm.staging import pieces, reader_of, staged_s
from pallas_kernels.host_memory import to_host
from pallas_kernels.hybrid_gemm import hybrid_gemm, pack_weights

H200, GH200 = MACHINES["NVIDIA H200"], MACHINES["NVIDIA GH200 480GB"]
PAPER = Gemm(m=64, k=4096, n=16384, w_layout="nk")


def drawn(shape: tuple[int, ...], seed: int) -> np.ndarray:
    values = np.random.default_rng(seed).standard_normal(shape, np.float32)
    return (values * shape[-2] ** -0.5).astype(ml_dtypes.bfloat16)


@pytest.mark.parametrize("layers", [None, 3])
@pytest.mark.parametrize("layout", ["kn", "nk", "tiles"])
@pytest.mark.parametrize(("m", "k", "n"), [(37, 1024, 4160), (1, 192, 320), (64, 2048, 4096)])
def test_pieces_give_the_exact_product(
    m: int, k: int, n: int, layout: Any, layers: int | None
) -> None:
    w = drawn((k, n) if layers is None else (layers, k, n), seed=1)
    stored = w if layout == "kn" else np.ascontiguousarray(w.swapaxes(-1, -2))
    host = to_host(tile_major(stored) if layout == "tiles" else stored)
    x = np.random.default_rng(2).standard_normal((m, k), np.float32).astype(ml_dtypes.bfloat16)
    layer = None if layers is None else layers - 1
    out = hybrid_gemm(
        jnp.asarray(x), host, layer=layer, w_layout=layout, reader="copy_engine",
        out_dtype="float32",
    )  # fmt: skip
    assert check_gemm(np.asarray(out), x, w if layer is None else w[layer]).worst_ratio <= 1


def test_packed_weights_of_any_size() -> None:
    x, w = drawn((5, 100), seed=3), drawn((100, 70), seed=4)
    packed = to_host(pack_weights(jnp.asarray(w)))
    out = hybrid_gemm(jnp.asarray(x), packed, reader="copy_engine")
    assert check_gemm(np.asarray(out), x, w).worst_ratio <= 1


def test_pieces_are_equal_and_not_too_small() -> None:
    assert pieces(PAPER) == 8
    assert pieces(replace(PAPER, n=64)) == 1
    assert pieces(Gemm(m=8, k=4096, n=64 * 131, w_layout="tiles")) == 1  # 131 is a prime


def test_the_faster_reader_is_chosen() -> None:
    """The copy engine over PCIe, where SMs read slower; the kernel over NVLink-C2C at decode."""
    assert reader_of(PAPER, H200) == "copy_engine"
    assert reader_of(PAPER, GH200) == "sms"
    assert reader_of(PAPER, replace(H200, link_gbps=55.0)) == "sms"
    assert reader_of(PAPER, replace(H200, copy_gbps=None)) == "sms"


def test_predicted_time_has_copies_and_products_overlap() -> None:
    copy_s = 2 * PAPER.k * PAPER.n / (H200.copy_gbps or 0) / 1e9
    assert copy_s < staged_s(PAPER, H200) < 1.05 * copy_s
    tall = replace(PAPER, m=1 << 17)
    product_s = 2.0 * tall.m * tall.k * tall.n / H200.bf16_tflops / 1e12
    assert product_s < staged_s(tall, H200) < 1.05 * product_s
    assert staged_s(PAPER, H200) < choice(PAPER, H200).time_s


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"reader": "copy_engine", "alpha": 0.5, "cluster": 2}, "since alpha, cluster are of"),
        ({"reader": "copy_engine", "backend": "interpret"}, "backend='interpret': expected"),
    ],
)
def test_what_does_not_go_together(options: dict[str, Any], message: str) -> None:
    x, w = jnp.ones((8, 64), jnp.bfloat16), to_host(jnp.ones((64, 64), jnp.bfloat16))
    with pytest.raises(ValueError, match=message):
        hybrid_gemm(x, w, **options)


def test_inside_jit_xla_would_not_use_the_copy_engine() -> None:
    x, w = jnp.ones((8, 64), jnp.bfloat16), to_host(jnp.ones((64, 64), jnp.bfloat16))
    with pytest.raises(ValueError, match="inside jit"):
        jax.jit(lambda x, w: hybrid_gemm(x, w, reader="copy_engine"))(x, w)
    assert jax.jit(hybrid_gemm)(x, w).shape == (8, 64)
