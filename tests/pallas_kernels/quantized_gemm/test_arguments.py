"""Arguments of `quantized_gemm`, its reference, its configurations, its programs."""

from __future__ import annotations

import inspect
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pallas_kernels.host_memory import to_host
from pallas_kernels.quantized_gemm import KINDS, magnitudes, quantize, quantized_gemm
from tests.pallas_kernels.gemm.cases import OUTPUT_ONLY
from tests.pallas_kernels.quantized_gemm.cases import Case, exact_weights, worst

X = Case(m=8, k=128, n=64).activations()
W = quantize(np.random.default_rng(0).standard_normal((128, 64)).astype(np.float32))
STACK = quantize(np.random.default_rng(1).standard_normal((3, 128, 64)).astype(np.float32))


@settings(max_examples=25, deadline=None)
@given(
    m=st.integers(1, 40), k=st.integers(1, 400), n=st.integers(1, 90), kind=st.sampled_from(KINDS),
    group=st.sampled_from([None, 32, 96, 128]), offset_dtype=st.sampled_from([None, "float32"]),
    dtype=st.sampled_from(["bfloat16", "float16"]), f32=st.booleans(),
    seed=st.integers(0, 2**32 - 1),
)  # fmt: skip
def test_the_reference_is_within_the_bound(
    m: int, k: int, n: int, kind: Any, group: int | None, offset_dtype: str | None, dtype: str,
    f32: bool, seed: int,
) -> None:  # fmt: skip
    if kind == "float8_e4m3fn":
        offset_dtype = None
    case = Case(m=m, k=k, n=n, kind=kind, group=group, offset_dtype=offset_dtype, dtype=dtype)
    x, w = case.activations(seed), case.weights(seed)
    parts = magnitudes(w) if offset_dtype else None
    out = quantized_gemm(x, w, out_dtype="float32" if f32 else None, backend="reference")
    assert out.dtype == ("float32" if f32 else dtype)
    assert worst(np.asarray(out), x, exact_weights(w), magnitudes=parts) <= 1


def test_the_bound_sees_a_wrong_scale() -> None:
    case = Case(m=4, k=256, n=64, kind="int4", group=128, out_dtype="float32")
    x, w = case.activations(), case.weights()
    wrong = replace(w, scales=w.scales[::-1].copy())
    out = np.asarray(quantized_gemm(x, wrong, out_dtype="float32", backend="reference"))
    assert worst(out, x, exact_weights(w)) > 100


@pytest.mark.parametrize("place", [lambda w: w, to_host, lambda w: jax.tree.map(jnp.asarray, w)])
def test_auto_works_wherever_weights_are(place: Any) -> None:
    out = quantized_gemm(X, place(STACK), layer=2)
    assert worst(np.asarray(out), X, exact_weights(STACK)[2]) <= 1


@pytest.mark.parametrize("place", [to_host, lambda w: jax.tree.map(jnp.asarray, w)])
def test_in_jit_with_a_traced_layer_beyond_the_stack(place: Any) -> None:
    run = jax.jit(lambda x, w, layer: quantized_gemm(x, w, layer=layer, backend="reference"))
    out = run(X, place(STACK), 7)
    assert worst(np.asarray(out), X, exact_weights(STACK)[2]) <= 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"w": W.data}, "w of type ndarray: expected QuantizedWeights"),
        ({"w": replace(W, data=3)}, "w.data of type int: expected an array"),
        ({"w": replace(W, k=0)}, "w.k=0: expected a whole number above 0"),
        ({"w": replace(W, kind="float8_e4m3fn")}, "w.data of dtype int8: expected float8_e4m3fn"),
        ({"w": replace(W, kind="int4")}, "w.data of shape .64, 128.: expected .64, 64. for"),
        ({"w": replace(W, group=64)}, "w.scales of shape .1, 64.: expected .2, 64."),
        ({"w": replace(W, n=65)}, "w.data of shape .64, 128.: expected .128, 128. for"),
        ({"w": replace(W, scales=W.scales.astype(np.float64))}, "w.scales of dtype float64"),
        (
            {"w": replace(W, offsets=W.scales[:, :32])},
            "w.offsets of shape .1, 32.: expected .1, 64.",
        ),
        ({"w": replace(W, offsets=W.data)}, "w.offsets of dtype int8"),
        ({"config": replace(OUTPUT_ONLY, w_stages=32)}, "bytes of shared memory"),
        ({"config": OUTPUT_ONLY, "alpha": 0.5}, "alpha=0.5: expected 1, since config.asym=False"),
        ({"config": replace(OUTPUT_ONLY, tk=256)}, "tk=256: expected at least 64 for kind='int8'"),
    ],
)
def test_wrong_use(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        inspect.unwrap(quantized_gemm)(**{"x": X, "w": W, **change})  # without jaxtyping's checks
