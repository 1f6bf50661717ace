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

from pallas_kernels.grouped_gemm import grouped_gemm
from pallas_kernels.host_memory import to_host
from tests.compilations import compilations
from tests.pallas_kernels.grouped_gemm.cases import assert_right, operands, poisoned, stored
from tests.pallas_kernels.interpreting import SMALL

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
        x,
        given_w,
        sizes,
        layer=layer,
        out_dtype="float32" if f32 else None,
        w_layout=w_layout,
        backend="reference",
    )
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


X_IN_HOST = jax.device_put(jnp.asarray(X), jnp.asarray(X).sharding.with_memory_kind("pinned_host"))

WRONG: list[tuple[dict[str, Any], str]] = [
    ({"group_sizes": [1, 2]}, r"group_sizes of shape 2: expected one number for each of w's 3"),
    ({"group_sizes": np.int32(3)}, r"group_sizes of shape a scalar: expected one number"),
    ({"group_sizes": [1.0, 2, 3]}, r"group_sizes of dtype float64: expected integers"),
    ({"group_sizes": [1, -2, 3]}, r"group_sizes with -2: expected numbers from 0 up"),
    ({"group_sizes": [20, 0, 21]}, r"group_sizes with sum 41: expected at most the 40 rows"),
    ({"group_sizes": jnp.array([41, 0, 0])}, r"group_sizes with sum 41"),
    ({"group_sizes": np.array([2**31 - 1] * 3, np.int32)}, r"group_sizes with sum 6442450941"),
    ({"x": X.astype(np.float32)}, r"x of dtype float32: expected one of bfloat16, float16"),
    ({"x": X.astype(np.float16)}, r"w of dtype bfloat16: expected float16 as in x"),
    ({"x": X[:0]}, r"x of shape 0x128: expected \[T >= 1, K=128\]"),
    ({"x": X[:, :64]}, r"x of shape 40x64: expected .*K=128"),
    ({"x": X_IN_HOST}, r"x in host memory: expected device memory"),
    ({"x": X[0]}, r"x: got \(128,\), expected an array \[T, K\]"),
    ({"w": W.astype(np.int8)}, r"w of dtype int8: expected one of bfloat16, float16"),
    ({"w": W[..., :100]}, r"w of shape 3x128x100 with N=100: expected a multiple of 64"),
    ({"w": W[:, :72], "x": X[:, :72]}, r"w of shape 3x72x192 with K=72: expected a multiple"),
    ({"w": W[0]}, r"w of shape 128x192: expected experts \[E, ...\] or a stack"),
    ({"w": W[:0]}, r"w of shape 0x128x192: expected experts .* none empty"),
    ({"w": [1.0]}, r"w of type list: expected an array, HostArray or QuantizedWeights"),
    ({"w_layout": "mn"}, r"w_layout='mn': expected 'kn'"),
    ({"layer": 0}, r"layer=0: expected None"),
    ({"w": STACK}, r"layer=None: expected a number from 0 to 1"),
    ({"w": STACK, "layer": 2}, r"layer=2: expected a number from 0 to 1"),
    ({"cluster": 3}, r"cluster=3: expected 1, 2, 4 or 8"),
    ({"config": SMALL, "cluster": 2}, r"cluster=2: expected config.cluster=1"),
    ({"config": SMALL, "sm_limit": 0}, r"sm_limit=0: expected from cluster=1 to 4 SMs"),
    ({"config": SMALL, "sm_limit": 5}, r"sm_limit=5: expected from cluster=1 to 4 SMs"),
    ({"sm_limit": 1.5}, r"sm_limit=1.5: expected a whole number"),
    ({"out_dtype": jnp.float16}, r"out_dtype=float16: expected bfloat16 or float32"),
    ({"backend": "cuda"}, r"backend='cuda': expected one of auto, sm90, interpret, reference"),
]


@pytest.mark.parametrize(("change", "message"), WRONG, ids=[m for _, m in WRONG])
@pytest.mark.parametrize("backend", ["interpret", "reference"])
def test_wrong_use_names_argument_value_and_range(
    change: dict[str, Any], message: str, backend: str
) -> None:
    arguments = {"x": X, "w": W, "group_sizes": SIZES, "backend": backend} | change
    unchecked = inspect.unwrap(grouped_gemm)  # as in production: without the tests' type checks
    with compilations() as seen, pytest.raises(ValueError, match=message):
        unchecked(**arguments)
    assert not seen  # refused before anything was compiled


def test_too_much_shared_memory_is_refused_before_launch() -> None:
    greedy = replace(SMALL, x_stages=15, w_stages=15)
    with pytest.raises(ValueError, match=r"config: needs 254976 bytes.*at most 232448"):
        grouped_gemm(X, W, SIZES, config=greedy, backend="interpret")
