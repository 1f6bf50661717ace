"""What `quantized_gemm` accepts and refuses, its reference, its configurations, its programs."""

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

from pallas_kernels import KernelUnavailable, missing
from pallas_kernels import device as present_device
from pallas_kernels.counting import round_up
from pallas_kernels.hopper import SHARED_BYTES_LIMIT
from pallas_kernels.host_memory import to_host
from pallas_kernels.quantized_gemm import (
    KINDS,
    Config,
    QuantizedGemm,
    check_fits,
    choose,
    launch_traffic,
    magnitudes,
    quantize,
    quantized_gemm,
    scales_weights,
    shared_bytes,
)
from pallas_kernels.quantized_gemm.programs import programs
from tests.pallas_kernels.quantized_gemm.cases import SMALL, Case, exact_weights, worst

X = Case(m=8, k=128, n=64).activations()
W = quantize(np.random.default_rng(0).standard_normal((128, 64)).astype(np.float32))
STACK = quantize(np.random.default_rng(1).standard_normal((3, 128, 64)).astype(np.float32))
F16 = QuantizedGemm(m=256, k=256, n=64, group=128, dtype="float16", out_dtype="float16")


@settings(max_examples=25, deadline=None)
@given(
    m=st.integers(1, 40),
    k=st.integers(1, 400),
    n=st.integers(1, 90),
    kind=st.sampled_from(KINDS),
    group=st.sampled_from([None, 32, 96, 128]),
    offset_dtype=st.sampled_from([None, "float32"]),
    dtype=st.sampled_from(["bfloat16", "float16"]),
    f32=st.booleans(),
    seed=st.integers(0, 2**32 - 1),
)
def test_the_reference_is_within_the_bound(
    m: int,
    k: int,
    n: int,
    kind: Any,
    group: int | None,
    offset_dtype: str | None,
    dtype: str,
    f32: bool,
    seed: int,
) -> None:
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


def test_sm90_says_what_is_missing() -> None:
    if not missing("sm90", present_device()):
        pytest.skip("this device runs sm90")
    with pytest.raises(KernelUnavailable, match="sm90"):
        quantized_gemm(X, W, backend="sm90")


def test_a_derivative_is_refused() -> None:
    with pytest.raises(NotImplementedError, match="quantized_gemm has no derivative"):
        jax.grad(lambda x: quantized_gemm(x, W, backend="reference").sum())(X)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"backend": "cuda"}, "backend='cuda': expected one of auto, sm90, interpret, reference"),
        ({"x": X[:, :64]}, "x of shape 8x64: expected .M >= 1, K=128"),
        ({"x": X[:0]}, "x of shape 0x128"),
        ({"x": X[0]}, "expected an array .M, K."),
        ({"x": X.astype(jnp.float32)}, "x of dtype float32: expected one of bfloat16, float16"),
        ({"x": jax.device_put(X, jax.memory.Space.Host)}, "x in host memory"),
        ({"w": W.data}, "w of type ndarray: expected QuantizedWeights"),
        ({"w": replace(W, data=3)}, "w.data of type int: expected an array"),
        ({"w": replace(W, kind="float8_e4m3fn")}, "w.data of dtype int8: expected float8_e4m3fn"),
        ({"w": replace(W, kind="int4")}, "w.data of shape .64, 128.: expected ..L,. 64, 64"),
        ({"w": replace(W, group=64)}, "w.scales of shape .1, 64.: expected .2, 64."),
        ({"w": replace(W, n=65)}, "w.data of shape .64, 128.: expected ..L,. 128, 128"),
        ({"w": replace(W, scales=W.scales.astype(np.float64))}, "w.scales of dtype float64"),
        (
            {"w": replace(W, offsets=W.scales[:, :32])},
            "w.offsets of shape .1, 32.: expected .1, 64.",
        ),
        ({"w": replace(W, offsets=W.data)}, "w.offsets of dtype int8"),
        ({"layer": 0}, "layer=0: expected None"),
        ({"w": STACK}, "layer=None: expected a number from 0 to 2"),
        ({"w": STACK, "layer": 3}, "layer=3: expected a number from 0 to 2"),
        ({"cluster": 3}, "cluster=3: expected 1, 2, 4 or 8"),
        ({"cluster": 2, "config": SMALL}, "cluster=2: expected config.cluster=1"),
        ({"sm_limit": 0}, "sm_limit=0: expected from cluster=1 to"),
        ({"sm_limit": 4, "config": SMALL}, "sm_limit=4: expected from cluster=1 to 3 SMs"),
        ({"sm_limit": 1.5}, "sm_limit=1.5: expected a whole number"),
        ({"out_dtype": "float16"}, "out_dtype=float16: expected bfloat16 or float32"),
        ({"config": replace(SMALL, w_stages=40)}, "bytes of shared memory"),
        ({"config": replace(SMALL, tk=256)}, "tk=256: expected at least 64 for kind='int8'"),
    ],
)
def test_wrong_use(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        inspect.unwrap(quantized_gemm)(**{"x": X, "w": W, **change})  # without jaxtyping's checks


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tm": 24}, "tm=24: expected one of 8, 16, 32"),
        ({"tn": 96}, "tn=96: expected a multiple of 128"),
        ({"tn": 256, "tm": 256}, "tm=256: expected at most 128"),
        ({"tk": 32}, "tk=32: expected 64, 128 or 256"),
        ({"x_columns": 256}, "x_columns=256"),
        ({"w_stages": 1}, "w_stages=1: expected a number above 1"),
        ({"x_stages": 1}, "x_stages=1"),
        ({"cluster": 3}, "cluster=3: expected 1, 2, 4 or 8"),
        ({"cluster": 8, "sm_count": 4}, "sm_count=4: expected at least cluster=8"),
        ({"compute_registers": 248}, "compute_registers=248"),
    ],
)
def test_wrong_configurations(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Config(**change)


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="tk=64: expected at least 128 for kind='int4'"):
        check_fits(replace(SMALL, tk=64), QuantizedGemm(m=8, k=128, n=64, kind="int4"))
    large = Config(tm=256, x_columns=64, w_stages=2, x_stages=2)
    for gemm, why in (
        (F16, "groups and dtype"),
        (replace(F16, group=32, dtype="bfloat16", out_dtype="float32"), "group=32, no multiple of"),
        (
            replace(F16, dtype="bfloat16", out_dtype="float32", offset_dtype="float32"),
            "weights wit",
        ),
    ):
        with pytest.raises(ValueError, match=f"tm=256: expected at most 128 for {why}"):
            check_fits(large, gemm)
        assert choose(gemm, sm_count=4).tm == 128


@given(
    m=st.integers(1, 20000),
    k=st.sampled_from([128, 768, 4096, 28672]),
    n=st.sampled_from([64, 192, 1024, 6144, 57344]),
    kind=st.sampled_from(KINDS),
    group=st.sampled_from([None, 32, 64, 128]),
    offset_dtype=st.sampled_from([None, "bfloat16"]),
    dtype=st.sampled_from(["bfloat16", "float16"]),
    f32=st.booleans(),
    sms=st.integers(1, 132),
    cluster=st.sampled_from([None, 1, 2, 4, 8]),
)
def test_the_choice_always_fits(
    m: int,
    k: int,
    n: int,
    kind: Any,
    group: int | None,
    offset_dtype: str | None,
    dtype: str,
    f32: bool,
    sms: int,
    cluster: int | None,
) -> None:
    gemm = QuantizedGemm(
        m=round_up(m, 8),
        k=k,
        n=n,
        kind=kind,
        group=group,
        offset_dtype=offset_dtype,
        dtype=dtype,
        out_dtype="float32" if f32 else dtype,
    )
    if cluster is not None and cluster > sms:
        with pytest.raises(ValueError, match="sm_count"):
            choose(gemm, sm_count=sms, cluster=cluster)
        return
    config = choose(gemm, sm_count=sms, cluster=cluster)
    assert shared_bytes(config, gemm) <= SHARED_BYTES_LIMIT
    traffic = launch_traffic(gemm, config)
    rows = config.tm * config.cluster
    assert traffic.w_bytes == n * k * (4 if kind == "int4" else 8) // 8 * -(-gemm.m // rows)
    assert traffic.mma_flops >= traffic.flops
    assert not (scales_weights(config, gemm) and gemm.m <= 128 * config.cluster)


@pytest.mark.parametrize("sms", [132, 16])
def test_programs_are_distinct_and_count_their_bytes(sms: int) -> None:
    found = programs(sms)
    assert len({p.name for p in found}) == len({p.key for p in found}) == len(found) > 40
    for program in found:
        assert program.shared_bytes <= SHARED_BYTES_LIMIT
        x, w, scales, _, *offsets = program.arguments
        bits = 4 if program.name.startswith("int4") else 8
        k = x.shape[1]
        assert w.nbytes * 8 == np.prod(w.shape[:-1]) * k * bits
        assert program.host_bytes == sum(a.nbytes for a in (w, scales, *offsets))
