"""The kernel itself, run step by step on a CPU with NaN in all memory, against float64."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pallas_kernels.host_memory import to_host
from pallas_kernels.mosaic import interpret_params
from pallas_kernels.quantized_gemm import (
    Config,
    QuantizedWeights,
    choose,
    compute,
    conversion,
    launch_traffic,
    magnitudes,
    quantize,
    quantized_gemm,
    sm90,
)
from pallas_kernels.quantized_gemm.config import sum_rows, sum_size
from pallas_kernels.quantized_gemm.reference import sums_of
from tests.pallas_kernels.interpreting import count_copies, races_found, reset, within
from tests.pallas_kernels.quantized_gemm.cases import (
    SMALL,
    Case,
    error,
    exact_weights,
    is_scaled,
    worst,
)

WIDE = replace(SMALL, tn=128, warpgroups=2, sm_count=2)


def clustered(size: int, **options: Any) -> Config:
    return replace(SMALL, tm=8, cluster=size, sm_count=2 * size, **options)


CASES = {
    "int8": Case(m=40, k=300, n=150),
    "int8, one row": Case(m=1, k=128, n=64),
    "int8, groups of 64": Case(
        m=9, k=250, n=130, group=64, config=replace(SMALL, tk=64), scale_dtype="bfloat16"
    ),
    "int8, groups, f16": Case(m=20, k=400, n=64, group=128, dtype="float16", out_dtype="float32"),
    "int8, two warpgroups": Case(m=17, k=256, n=256, group=256, config=WIDE),
    "int8, wide X tiles": Case(m=16, k=384, n=64, config=replace(SMALL, x_columns=128)),
    "int8, K steps of 256": Case(m=16, k=512, n=64, config=replace(SMALL, tk=256)),
    "int4": Case(m=33, k=300, n=70, kind="int4"),
    "int4, wide X tiles": Case(m=8, k=384, n=64, kind="int4", config=replace(SMALL, x_columns=128)),
    "int4, groups, K steps of 256": Case(
        m=8, k=500, n=64, kind="int4", group=256, config=replace(SMALL, tk=256), out_dtype="float32"
    ),
    "int4, groups, f16": Case(
        m=16, k=384, n=192, kind="int4", group=128, dtype="float16", config=replace(SMALL, tm=8)
    ),
    "fp8": Case(m=24, k=200, n=100, kind="float8_e4m3fn"),
    "fp8, groups": Case(
        m=16, k=384, n=128, kind="float8_e4m3fn", group=128, scale_dtype="bfloat16", config=WIDE
    ),
    "cluster of 2": Case(m=40, k=256, n=128, kind="int4", config=clustered(2)),
    "cluster of 2, an odd number of groups": Case(
        m=16, k=640, n=128, group=128, config=clustered(2)
    ),
    "cluster of 4, groups, wider than M": Case(
        m=20, k=256, n=64, kind="int4", group=128, config=clustered(4)
    ),
    "cluster of 8": Case(m=70, k=128, n=64, kind="float8_e4m3fn", config=clustered(8)),
}
# tk holds several scales, or scales do not end with K steps
PIECES = {
    "int8, groups of 32": Case(m=9, k=250, n=130, group=32, scale_dtype="float16"),
    "int4, groups of 32": Case(m=24, k=300, n=70, kind="int4", group=32, scale_dtype="bfloat16"),
    "int4, groups of 32, offsets, wide X tiles": Case(
        m=9,
        k=400,
        n=64,
        kind="int4",
        group=32,
        scale_dtype="float16",
        offset_dtype="float32",
        config=replace(SMALL, x_columns=128),
    ),
    "fp8, groups of 32, two warpgroups": Case(
        m=8, k=128, n=256, kind="float8_e4m3fn", group=32, dtype="float16", config=WIDE
    ),
    "int4, groups of 64, offsets": Case(
        m=8, k=250, n=64, kind="int4", group=64, offset_dtype="bfloat16", out_dtype="float32"
    ),
    "cluster of 2, groups of 96, offsets": Case(
        m=20, k=500, n=64, group=96, offset_dtype="float16", config=clustered(2, tk=64)
    ),
    "int8, per channel, offsets": Case(m=20, k=300, n=64, offset_dtype="float32"),
    "int4, groups of 128, offsets": Case(
        m=8, k=256, n=64, kind="int4", group=128, offset_dtype="float32"
    ),
    "128 rows, groups of 32, offsets": Case(
        m=72,
        k=128,
        n=64,
        group=32,
        offset_dtype="float32",
        config=replace(SMALL, tm=128, sm_count=1),
    ),
}
CASES |= PIECES
LARGE = Config(tm=256, tn=64, x_columns=64, w_stages=3, x_stages=2, warpgroups=1, sm_count=2)
LARGE_CASES = {
    "256 rows": Case(m=300, k=192, n=64, config=LARGE),
    "256 rows, scaled int8": Case(m=264, k=300, n=64, group=128, config=LARGE),
    "256 rows, scaled int4": Case(
        m=256, k=512, n=64, kind="int4", group=128, config=LARGE, out_dtype="float32"
    ),
    "256 rows, scaled fp8": Case(
        m=256, k=256, n=64, kind="float8_e4m3fn", group=64, config=replace(LARGE, tk=64)
    ),
}


def run(x: Any, w: QuantizedWeights, **options: Any) -> np.ndarray:
    return within(lambda: np.asarray(quantized_gemm(x, w, backend="interpret", **options)))


def product(case: Case) -> np.ndarray:
    x, w = case.activations(), case.weights()
    config = case.config
    return run(x, w, config=config, cluster=config.cluster, out_dtype=case.out_dtype)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_within_the_bound(case: Case) -> None:
    out = product(case)
    assert out.dtype == (case.out_dtype or case.dtype)
    assert not is_scaled(case)
    assert error(case, out) <= 1


@pytest.mark.slow
@pytest.mark.parametrize("case", LARGE_CASES.values(), ids=LARGE_CASES.keys())
def test_large_tiles_within_the_bound(case: Case) -> None:
    scaled = is_scaled(case)
    assert scaled == (case.group is not None)
    assert error(case, product(case)) <= 1


def test_every_sm_limit_gives_the_same_bits() -> None:
    case = Case(m=40, k=256, n=192, kind="int4", group=128)
    x, w = case.activations(), case.weights()
    outs = [run(x, w, config=SMALL, sm_limit=limit) for limit in (1, 2, 3)]
    assert worst(outs[0], x, exact_weights(w)) <= 1
    for out in outs[1:]:
        np.testing.assert_array_equal(out.view(np.uint16), outs[0].view(np.uint16))


@pytest.mark.parametrize(("kind", "group"), [("int8", None), ("int4", 128)])
def test_layer_of_a_stack_is_chosen_at_run_time(kind: Any, group: int | None) -> None:
    rng = np.random.default_rng(5)
    stack = quantize(rng.standard_normal((3, 256, 128)).astype(np.float32), kind, group)
    x = Case(m=8, k=256, n=128).activations()
    for layer in (0, 2):
        out = run(x, stack, layer=layer, config=SMALL)
        assert worst(out, x, exact_weights(stack)[layer]) <= 1


def test_layer_of_a_stack_with_offsets_in_host_memory() -> None:
    case = Case(m=8, k=128, n=64, kind="int4", group=32, offset_dtype="float32")
    layers = [case.weights(seed) for seed in (1, 2)]
    stack = jax.tree.map(lambda *arrays: np.stack(arrays), *layers)
    x = case.activations()
    for layer, w in enumerate(layers):
        out = run(x, to_host(stack), layer=layer, config=SMALL)
        assert worst(out, x, exact_weights(w), magnitudes=magnitudes(w)) <= 1


def test_layers_in_a_scan_with_traced_scalars() -> None:
    rng = np.random.default_rng(5)
    stack = quantize(rng.standard_normal((2, 128, 64)).astype(np.float32))
    placed = jax.tree.map(jnp.asarray, stack)
    x = Case(m=8, k=128, n=64).activations()

    @jax.jit
    def every_layer(x: jax.Array, w: QuantizedWeights, limit: jax.Array) -> jax.Array:
        def step(carry: None, layer: jax.Array) -> tuple[None, jax.Array]:
            out = quantized_gemm(
                x, w, layer=layer, sm_limit=limit, config=SMALL, backend="interpret"
            )
            return carry, out

        return jax.lax.scan(step, None, jnp.arange(2))[1]

    outs = within(lambda: np.asarray(every_layer(x, placed, jnp.int32(2))))
    for out, w in zip(outs, exact_weights(stack), strict=True):
        assert worst(out, x, w) <= 1


def test_layer_and_sm_limit_do_not_recompile(monkeypatch: pytest.MonkeyPatch) -> None:
    builds = []
    build = sm90.build
    monkeypatch.setattr(sm90, "build", lambda *a, **k: builds.append(1) or build(*a, **k))
    stack = quantize(np.random.default_rng(6).standard_normal((2, 128, 64)).astype(np.float32))
    x = Case(m=24, k=128, n=64).activations()
    config = replace(SMALL, sm_count=5)  # of no other test
    for layer, limit in ((0, 1), (1, 1), (1, 5), (0, 3)):
        run(x, stack, layer=layer, sm_limit=limit, config=config)
    assert len(builds) == 1


def test_w_in_host_memory_gives_the_same_bits() -> None:
    case = Case(m=8, k=256, n=64, kind="int4", group=128)
    x, w = case.activations(), case.weights()
    a, b = (run(x, each, config=SMALL) for each in (w, to_host(w)))
    np.testing.assert_array_equal(a.view(np.uint16), b.view(np.uint16))


@pytest.mark.slow
@settings(max_examples=8)
@given(
    m=st.integers(1, 50),
    k=st.integers(1, 400),
    n=st.integers(1, 150),
    weights=st.sampled_from(
        [
            *(("int8", None), ("int8", 64), ("int8", 32), ("int4", None), ("int4", 32)),
            *(("float8_e4m3fn", None), ("float8_e4m3fn", 64)),
        ]
    ),
    dtype=st.sampled_from(["bfloat16", "float16"]),
    f32=st.booleans(),
    scale_dtype=st.sampled_from(["float32", "bfloat16"]),
    cluster=st.sampled_from([1, 2]),
    seed=st.integers(0, 2**32 - 1),
)
def test_any_shape_and_type(
    m: int,
    k: int,
    n: int,
    weights: Any,
    dtype: str,
    f32: bool,
    scale_dtype: str,
    cluster: int,
    seed: int,
) -> None:
    kind, group = weights
    config = replace(clustered(cluster), tk=64 if group == 64 else 128)
    out_dtype = "float32" if f32 else None
    case = Case(m=m, k=k, n=n, kind=kind, group=group, dtype=dtype, scale_dtype=scale_dtype)
    x, w = case.activations(seed), case.weights(seed)
    out = run(x, w, config=config, cluster=cluster, out_dtype=out_dtype)
    assert worst(out, x, exact_weights(w)) <= 1


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "group"), [("int8", None), ("int4", 128)])
def test_configurations_in_use(kind: Any, group: int | None) -> None:
    for m in (5, 60):
        case = Case(m=m, k=384, n=256, kind=kind, group=group)
        config = choose(case.gemm(), sm_count=2)
        x, w = case.activations(), case.weights()
        assert worst(run(x, w, config=config), x, exact_weights(w)) <= 1


@pytest.mark.parametrize(
    "name",
    [
        *("int8, groups of 64", "int4", "cluster of 2, an odd number of groups", "cluster of 8"),
        *("int4, groups of 32, offsets, wide X tiles", "cluster of 2, groups of 96, offsets"),
    ],
)
def test_counted_bytes_are_the_traffic(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case, config = CASES[name], CASES[name].config
    gemm, expected = case.gemm(), launch_traffic(case.gemm(), CASES[name].config)
    copies = count_copies(monkeypatch)
    product(case)
    w_tile = (config.tn, config.tk // (2 if case.kind == "int4" else 1))
    x_tile = (config.tm, config.x_columns)
    sums = (sum_rows(config, gemm), config.tm)
    assert len({w_tile, x_tile, sums}) == 3
    # interpret mode lets every CTA of a cluster load the whole of a multicast tile
    w_bytes = sum(c.nbytes for c in copies.loads if c.tile == w_tile)
    assert w_bytes == expected.w_bytes * config.cluster
    assert sum(c.nbytes for c in copies.loads if c.tile == x_tile) == expected.x_load_bytes
    sum_bytes = sum(c.nbytes for c in copies.loads if c.tile == sums)
    assert sum_bytes == expected.sum_bytes
    assert bool(sum_bytes) == (case.offset_dtype is not None)
    scales = sum(c.nbytes for c in copies.loads if c.tile not in (w_tile, x_tile, sums))
    assert scales == expected.scale_bytes * (config.cluster if gemm.groups > 1 else 1)
    assert sum(c.nbytes for c in copies.stores) == expected.o_store_bytes


def racing(case: Case) -> bool:
    gemm, w = case.gemm(), case.weights()
    kernel = jax.jit(sm90.build(gemm, case.config, interpret=interpret_params(detect_races=True)))
    x = jnp.pad(case.activations(), ((0, gemm.m - case.m), (0, gemm.k - case.k)))
    arrays = [w.data, w.scales]
    if w.offsets is not None:
        arrays += [w.offsets, sums_of(x, sum_size(case.config, gemm))]
    scalars = np.array([case.config.clusters, 0], np.int32)
    reset()
    out = within(lambda: np.asarray(kernel(x, *map(jnp.asarray, arrays), scalars)))
    assert out.shape == (gemm.m, gemm.n)
    return races_found()


@pytest.mark.parametrize(
    "name",
    [
        *("int8, groups of 64", "int4, groups, f16", "cluster of 2, an odd number of groups"),
        *("int4, groups of 32, offsets, wide X tiles", "cluster of 2, groups of 96, offsets"),
    ],
)
def test_no_race(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert not racing(CASES[name])


def test_the_race_detector_sees_a_missing_fence(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    without = SimpleNamespace(**{**vars(compute.plgpu), "commit_smem": lambda: None})
    monkeypatch.setattr(compute, "plgpu", without)
    monkeypatch.setattr(conversion, "plgpu", without)
    assert racing(Case(m=16, k=512, n=128, config=replace(SMALL, sm_count=1)))
    reset()


def test_a_strip_without_an_sm_would_be_nan() -> None:
    """The positive control: memory that no CTA writes is seen."""
    case = Case(m=8, k=128, n=256)
    w, x = case.weights(), case.activations()
    kernel = jax.jit(sm90.build(case.gemm(), SMALL, interpret=interpret_params()))
    scalars = np.array([4, 0], np.int32)  # one more active cluster than there are
    out = within(lambda: np.asarray(kernel(x, jnp.asarray(w.data), jnp.asarray(w.scales), scalars)))
    assert np.isnan(out[:, 192:].astype(np.float32)).all()
    assert worst(out[:, :192], x, exact_weights(w)[:, :192]) <= 1
