"""Arguments of `grouped_gemm`: accepted, refused with a reason, and not compiled again."""

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

from pallas_kernels.gemm import Config, Quantised
from pallas_kernels.grouped_gemm import grouped_gemm
from pallas_kernels.host_memory import to_host
from pallas_kernels.quantized_gemm import matrix_of
from tests.compilations import compilations
from tests.pallas_kernels.gemm.cases import OUTPUT_ONLY, Case
from tests.pallas_kernels.grouped_gemm.cases import assert_right, operands, poisoned, stored

X, W = operands(40, 128, 192, 3)
STACK = np.stack([W, operands(40, 128, 192, 3, seed=1)[1]])
SIZES = np.array([11, 0, 20])


T, E = 90, 4


@settings(max_examples=15)  # each shape is compiled
@given(
    sizes=st.lists(st.one_of(st.just(0), st.integers(0, 30)), min_size=E, max_size=E).filter(
        lambda sizes: sum(sizes) <= T
    ),
    seed=st.integers(0, 2**32 - 1),
    dtype=st.sampled_from(["bfloat16", "float16"]),
    f32=st.booleans(),
    w_layout=st.sampled_from(["kn", "nk"]),
    layer=st.sampled_from([None, 0, 1]),
)
def test_reference_is_within_the_bound_and_reads_no_empty_expert(
    sizes: list[int], seed: int, dtype: str, f32: bool, w_layout: Any, layer: int | None
) -> None:
    x, w = operands(T, 64, 128, E, dtype=dtype, seed=seed)
    given_w = stored(poisoned(w, sizes), w_layout)
    if layer is not None:
        other = jnp.full_like(given_w, np.nan)
        given_w = jnp.stack([given_w, other] if layer == 0 else [other, given_w])
    out = grouped_gemm(
        x, given_w, sizes, layer=layer, out_dtype="float32" if f32 else None, w_layout=w_layout,
        backend="reference",
    )  # fmt: skip
    assert out.dtype == ("float32" if f32 else dtype)
    assert_right(np.asarray(out), x, w, sizes)


@pytest.mark.parametrize(("t", "experts"), [(1, 1), (1, 9), (300, 2), (700, 2), (64, 64)])
def test_reference_for_every_height_of_its_blocks(t: int, experts: int) -> None:
    x, w = operands(t, 64, 64, experts)
    sizes = np.random.default_rng(0).multinomial(t, np.full(experts, 1 / experts))
    assert_right(np.asarray(grouped_gemm(x, w, sizes, backend="reference")), x, w, sizes)


def test_host_weights_work_in_reference_traced_or_not() -> None:
    on_device = jnp.asarray(W)
    in_host = jax.device_put(on_device, on_device.sharding.with_memory_kind("pinned_host"))
    for run in (grouped_gemm, jax.jit(grouped_gemm, static_argnames="backend")):
        out = run(X, in_host, SIZES, backend="reference")
        assert_right(np.asarray(out), X, W, SIZES)
    assert_right(np.asarray(grouped_gemm(X, to_host(on_device), SIZES)), X, W, SIZES)
    with pytest.raises(ValueError, match="backend='interpret' cannot run inside a jit"):
        jax.jit(lambda w: grouped_gemm(X, w, SIZES, backend="interpret"))(in_host)


GGUF = Quantised(kind="int4", group=32, scale_dtype="float16", offset_dtype="float32")
QUANTISED = Case(m=40, k=128, n=192, sizes=(11, 0, 20), weights=GGUF)
Q = QUANTISED.operands()[1]

# What all products refuse is tested with hybrid_gemm.
WRONG: list[tuple[dict[str, Any], str]] = [
    ({"w": matrix_of(Q, 0)}, r"w.data of shape \(192, 64\): expected experts \[E, ...\]"),
    ({"w": QUANTISED.operands(stack=(2, 2))[1]}, r"w.data of shape \(2, 2, 3, 192, 64\): expected"),
    ({"w": replace(Q, scales=Q.scales[:, :1])}, r"w.scales of shape \(3, 1, 192\): expected"),
    ({"w": Q, "config": Config()}, r"tk=64: expected at least 128 for kind='int4'"),
    ({"w": Q, "config": replace(OUTPUT_ONLY, tm=256)}, "tm=256: expected at most 128 for"),
    ({"group_sizes": [1, 2]}, r"group_sizes of shape 2: expected one number for each of w's 3"),
    ({"group_sizes": np.int32(3)}, r"group_sizes of shape a scalar: expected one number"),
    ({"group_sizes": [1.0, 2, 3]}, r"group_sizes of dtype float64: expected integers"),
    ({"group_sizes": [1, -2, 3]}, r"group_sizes with -2: expected numbers from 0 up"),
    ({"group_sizes": [20, 0, 21]}, r"group_sizes with sum 41: expected at most the 40 rows"),
    ({"group_sizes": jnp.array([41, 0, 0])}, r"group_sizes with sum 41"),
    ({"group_sizes": np.array([2**31 - 1] * 3, np.int32)}, r"group_sizes with sum 6442450941"),
    ({"x": X.astype(np.float16)}, r"w of dtype bfloat16: expected float16 as in x"),
    ({"x": X[:0]}, r"x of shape 0x128: expected \[T >= 1, K=128\]"),
    ({"w": W[..., :100]}, r"w of shape 3x128x100 with N=100: expected a multiple of 64"),
    ({"w": W[:, :72], "x": X[:, :72]}, r"w of shape 3x72x192 with K=72: expected a multiple"),
    ({"w": W[0]}, r"w of shape 128x192: expected experts \[E, ...\] or a stack"),
    ({"w": W[:0]}, r"w of shape 0x128x192: expected experts .* none empty"),
    ({"w": [1.0]}, r"w of type list: expected an array, HostArray or QuantizedWeights"),
    ({"w_layout": "mn"}, r"w_layout='mn': expected 'kn'"),
    ({"w": STACK}, r"layer=None: expected a number from 0 to 1"),
    ({"w": STACK, "layer": 2}, r"layer=2: expected a number from 0 to 1"),
]


@pytest.mark.parametrize(("change", "message"), WRONG, ids=[m for _, m in WRONG])
def test_wrong_use_names_argument_value_and_range(change: dict[str, Any], message: str) -> None:
    arguments = {"x": X, "w": W, "group_sizes": SIZES, "backend": "reference"} | change
    unchecked = inspect.unwrap(grouped_gemm)  # as in production: without the tests' type checks
    with compilations() as seen, pytest.raises(ValueError, match=message):
        unchecked(**arguments)
    assert not seen  # refused before anything was compiled
