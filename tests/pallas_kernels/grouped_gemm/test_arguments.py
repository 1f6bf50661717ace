"""What `grouped_gemm` accepts, what it refuses and how, and what it does not compile again."""

from __future__ import annotations

import inspect
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pallas_kernels import KernelUnavailable, missing
from pallas_kernels import device as present_device
from pallas_kernels.grouped_gemm import Config, GroupedGemm, grouped_gemm, sm90
from pallas_kernels.host_memory import to_host
from tests.compilations import compilations
from tests.pallas_kernels.grouped_gemm.cases import SMALL, assert_right, operands, poisoned, stored
from tests.pallas_kernels.interpreting import within

X, W = operands(40, 128, 192, 3)
STACK = np.stack([W, operands(40, 128, 192, 3, seed=1)[1]])
SIZES = np.array([11, 0, 20])


def test_run_time_values_do_not_recompile(monkeypatch: pytest.MonkeyPatch) -> None:
    builds: list[GroupedGemm] = []
    build = sm90.build

    def counted(gemm: GroupedGemm, config: Config, **options: Any) -> Any:
        builds.append(gemm)
        return build(gemm, config, **options)

    monkeypatch.setattr(sm90, "build", counted)
    stack = jnp.asarray(STACK)

    def run(sizes: Any, layer: Any, config: Config = SMALL, **options: Any) -> None:
        given_sizes = {"group_sizes": sizes, "layer": layer, "config": config, **options}
        out = within(lambda: np.asarray(grouped_gemm(X, stack, backend="interpret", **given_sizes)))
        assert_right(out, X, STACK[int(layer)], np.asarray(sizes))

    run(SIZES, 0)
    # jax's interpreter registers an option of jax in its first run, which is a cache miss once.
    run(SIZES, 0)
    last, on_device = jnp.int32(1), jnp.asarray([0, 0, 40], jnp.int32)
    run(SIZES, last)  # jax compiles the stacking of scalars, one of which is an array
    with compilations() as seen:
        builds.clear()
        run([40, 0, 0], 0)
        run((0, 0, 0), 1, sm_limit=2)
        run(on_device, last, sm_limit=np.int64(3))
        run(np.array([1, 2, 3], np.uint8), np.int32(1), sm_limit=1)
    assert not builds
    assert not seen
    with compilations() as seen:  # the positive control
        run(SIZES, 0, config=replace(SMALL, stages=3))
    assert builds
    assert seen


def test_reference_compiles_once_too() -> None:
    stack = jnp.asarray(STACK)
    grouped_gemm(X, stack, SIZES, layer=0, backend="reference")
    with compilations() as seen:
        for sizes, layer in (([0, 0, 1], 1), ([40, 0, 0], 0), ([0, 0, 0], 1)):
            out = grouped_gemm(X, stack, sizes, layer=layer, sm_limit=16, backend="reference")
            assert_right(np.asarray(out), X, STACK[layer], sizes)
    assert not seen


T, E = 90, 4


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


def test_auto_works_here_and_sm90_says_what_is_missing() -> None:
    assert_right(np.asarray(grouped_gemm(X, W, SIZES)), X, W, SIZES)
    if reason := missing("sm90", present_device()):
        with pytest.raises(KernelUnavailable) as refusal:
            grouped_gemm(X, W, SIZES, backend="sm90")
        assert reason in str(refusal.value)


def test_host_weights_work_in_reference_traced_or_not() -> None:
    on_device = jnp.asarray(W)
    in_host = jax.device_put(on_device, on_device.sharding.with_memory_kind("pinned_host"))
    for run in (grouped_gemm, jax.jit(grouped_gemm, static_argnames="backend")):
        out = run(X, in_host, SIZES, backend="reference")
        assert_right(np.asarray(out), X, W, SIZES)
    assert_right(np.asarray(grouped_gemm(X, to_host(on_device), SIZES)), X, W, SIZES)
    with pytest.raises(ValueError, match="backend='interpret' cannot run inside a jit"):
        jax.jit(lambda w: grouped_gemm(X, w, SIZES, backend="interpret"))(in_host)


def test_no_derivative_says_so() -> None:
    def loss(x: jax.Array) -> jax.Array:
        return grouped_gemm(x, W, SIZES, backend="reference").astype(jnp.float32).sum()

    with pytest.raises(NotImplementedError, match="grouped_gemm has no derivative"):
        jax.grad(loss)(jnp.asarray(X))


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
    greedy = replace(SMALL, stages=15)
    with pytest.raises(ValueError, match=r"config: needs 254976 bytes.*at most 232448"):
        grouped_gemm(X, W, SIZES, config=greedy, backend="interpret")
