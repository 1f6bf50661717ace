"""Quantised experts in the kernel, run step by step on a CPU with NaN in all memory."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pallas_kernels.grouped_gemm import grouped_gemm, launch_traffic, quantized_sm90
from pallas_kernels.grouped_gemm.schedule import block_table
from pallas_kernels.host_memory import to_host
from pallas_kernels.mosaic import interpret_params
from pallas_kernels.quantized_gemm import Config, QuantizedWeights, cta, matrix_of
from tests.compilations import compilations
from tests.pallas_kernels.grouped_gemm.quantized_cases import SMALL, Case, assert_right, poisoned
from tests.pallas_kernels.interpreting import Counted, count_copies, races_found, reset, within

NARROW = replace(SMALL, tm=8, sm_count=2)


def clustered(size: int) -> Config:
    return replace(NARROW, cluster=size, sm_count=2 * size)


CASES = {
    "int8, empty experts, unaligned ends": Case(sizes=(5, 0, 20, 1, 0, 3), t=29, k=128),
    "int8, rows of no expert, any K and N": Case(sizes=(7, 0, 2), t=40, k=200, n=100),
    "int8, no expert has rows": Case(sizes=(0, 0), t=9, k=128),
    "int8, groups of 32, float16 scales": Case(
        sizes=(0, 9, 8), t=17, k=128, group=32, scale_dtype="float16"
    ),
    "int4, groups of 128, one row": Case(sizes=(0, 1, 0), t=1, kind="int4", group=128),
    "int4, groups of 32 with offsets": Case(
        sizes=(3, 0, 18), t=22, kind="int4", group=32, offset_dtype="float32"
    ),
    "fp8, two warpgroups, to float32": Case(
        sizes=(9, 0, 40),
        t=50,
        n=192,
        kind="float8_e4m3fn",
        out_dtype="float32",
        config=replace(SMALL, tm=64, tn=128, warpgroups=2),
    ),
    "float16, cluster of 2, groups, offsets": Case(
        sizes=(30, 0, 13),
        t=45,
        kind="int8",
        group=128,
        dtype="float16",
        offset_dtype="bfloat16",
        config=clustered(2),
    ),
    "int4, cluster of 4": Case(sizes=(0, 50, 2), t=54, k=128, kind="int4", config=clustered(4)),
}
RARER = ("int8, groups of 32, float16 scales", "int4, cluster of 4")


def run(x: Any, w: QuantizedWeights, sizes: Any, **options: Any) -> np.ndarray:
    return within(lambda: np.asarray(grouped_gemm(x, w, sizes, backend="interpret", **options)))


def product(case: Case) -> np.ndarray:
    return run(
        case.activations(),
        poisoned(case.weights(), case.sizes),
        np.array(case.sizes),
        cluster=case.config.cluster,
        config=case.config,
        out_dtype=case.out_dtype,
    )


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=name, marks=[pytest.mark.slow] if name in RARER else [])
        for name, case in CASES.items()
    ],
)
def test_within_the_bound_and_reading_what_the_traffic_model_counts(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    copies = count_copies(monkeypatch)
    out = product(case)
    assert out.dtype == (case.out_dtype or case.dtype)
    assert_right(case, out, case.weights())
    model = launch_traffic(case.gemm(), case.config, np.array(case.sizes))
    assert loaded(copies, case) == (model.link_bytes, model.x_load_bytes, model.sum_bytes)
    assert sum(store.nbytes for store in copies.stores) == model.o_store_bytes


def loaded(copies: Counted, case: Case) -> tuple[float, float, float]:
    """Return the bytes of weights with scales and offsets, of X and of sums of X.

    The GPU loads a multicast tile once for the cluster, interpret mode once for each CTA. Only a
    column's only scale is not multicast.
    """
    config, one = case.config, case.gemm().expert
    w = x = sums = 0.0
    for load in copies.loads:
        if load.tile == (config.tm, config.x_columns):
            x += load.nbytes
        elif load.tile[-1] == config.tm:
            sums += load.nbytes
        else:
            whole = load.tile[0] == config.tn or one.groups > 1
            w += load.nbytes / (config.cluster if whole else 1)
    return w, x, sums


def test_an_expert_that_is_read_would_spoil_its_rows() -> None:
    """The positive control of the poison, and of rows staying apart."""
    case = Case(sizes=(13, 1, 6), t=20, k=128)
    w = case.weights()
    out = run(case.activations(), poisoned(w, (1, 0, 1)), np.array(case.sizes), config=SMALL)
    assert np.isnan(out[13].astype(np.float32)).all()
    assert np.isfinite(np.delete(out, 13, axis=0).astype(np.float32)).all()


T = 30
SIZES_WITHIN = st.lists(st.integers(0, T), min_size=3, max_size=3).map(
    lambda cuts: np.diff([0, *sorted(cuts)]).tolist()
)


@settings(max_examples=3)
@given(sizes=SIZES_WITHIN, sms=st.integers(1, 2))
@example(sizes=[0, 30, 0], sms=2)
def test_any_sizes_and_sm_limit_in_one_kernel(sizes: list[int], sms: int) -> None:
    case = Case(sizes=(0, 0, 0), t=T, k=128, kind="int4", group=128, config=NARROW)
    w = case.weights()
    out = run(case.activations(), poisoned(w, sizes), np.array(sizes), sm_limit=sms, config=NARROW)
    assert_right(case, out, w, sizes)


def test_layers_in_a_scan_with_traced_sizes() -> None:
    case = Case(sizes=(0, 0, 0), t=20, k=128, group=64, config=NARROW)
    stack = jax.tree.map(jnp.asarray, case.weights(stack=(2,)))
    x, sizes = jnp.asarray(case.activations()), np.array([[9, 0, 11], [0, 17, 2]], np.int32)

    @jax.jit
    def every_layer(x: jax.Array, w: Any, sizes: jax.Array, sms: jax.Array) -> jax.Array:
        def step(carry: None, layer: jax.Array) -> tuple[None, jax.Array]:
            out = grouped_gemm(
                x, w, sizes[layer], layer=layer, sm_limit=sms, config=NARROW, backend="interpret"
            )
            return carry, out

        return jax.lax.scan(step, None, jnp.arange(2))[1]

    outs = within(lambda: np.asarray(every_layer(x, stack, sizes, jnp.int32(1))))
    for layer, out in enumerate(outs):
        assert_right(case, out, matrix_of(case.weights(stack=(2,)), layer), sizes[layer])


def test_run_time_values_do_not_recompile_and_host_memory_gives_the_same_bits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    builds = []
    build = quantized_sm90.build
    monkeypatch.setattr(quantized_sm90, "build", lambda *a, **k: builds.append(1) or build(*a, **k))
    case = Case(sizes=(0, 0), t=11, k=128, config=replace(NARROW, sm_count=2))
    stack, x = case.weights(stack=(2,)), jnp.asarray(case.activations())
    in_host, on_device = to_host(stack), jax.tree.map(jnp.asarray, stack)
    outs = {}
    for number, (w, sizes, layer, sms) in enumerate(
        (
            (on_device, [3, 8], 1, 2),
            (on_device, [0, 9], 0, 1),
            (in_host, [3, 8], 1, 1),
        )
    ):
        if number == 2:
            builds.clear()  # jax may trace again for arrays that were placed explicitly
        out = run(x, w, np.array(sizes), layer=layer, sm_limit=sms, config=case.config)
        assert_right(case, out, matrix_of(stack, layer), sizes)
        outs.setdefault(layer, []).append(out.view(np.uint16))
    assert len(builds) <= 1
    np.testing.assert_array_equal(*outs[1])


def racing(case: Case) -> bool:
    gemm, config, w = case.gemm(), case.config, case.weights()
    kernel = jax.jit(
        quantized_sm90.build(gemm, config, interpret=interpret_params(detect_races=True))
    )
    table, expert_blocks, blocks = block_table(
        np.array(case.sizes), case.t, config.tm * config.cluster, xp=np
    )
    scalars = np.array([expert_blocks, blocks, config.clusters, 0], np.int32)
    x = jnp.pad(case.activations(), ((0, gemm.expert.m - case.t), (0, 0)))
    reset()
    out = within(
        lambda: np.asarray(kernel(x, jnp.asarray(w.data), jnp.asarray(w.scales), table, scalars))
    )
    assert_right(case, out, w)
    return races_found()


RACE = Case(sizes=(5, 0, 21), t=30, k=256, group=128, config=replace(NARROW, sm_count=2))


def test_no_race(capfd: pytest.CaptureFixture[str]) -> None:
    assert not racing(RACE)


def test_the_race_detector_sees_a_missing_fence(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    without = SimpleNamespace(**{**vars(cta.plgpu), "commit_smem": lambda: None})
    monkeypatch.setattr(cta, "plgpu", without)
    assert racing(RACE)
    reset()


def test_no_compilation_for_other_sizes_in_the_reference() -> None:
    case = Case(sizes=(0, 0, 0), t=30, n=100, k=200, kind="int4", group=32, offset_dtype="float16")
    x, w = jnp.asarray(case.activations()), jax.tree.map(jnp.asarray, case.weights(stack=(2,)))
    grouped_gemm(x, w, np.array([1, 2, 3]), layer=0, backend="reference")
    with compilations() as seen:
        for sizes, layer in (([0, 0, 1], 1), ([30, 0, 0], 0), ([0, 0, 0], 1)):
            out = grouped_gemm(x, w, sizes, layer=layer, backend="reference")
            assert_right(case, np.asarray(out), matrix_of(case.weights(stack=(2,)), layer), sizes)
    assert not seen


@pytest.mark.parametrize(
    ("case", "layer"),
    [
        (Case(sizes=(), t=90, k=128, n=70), 1),
        (Case(sizes=(), t=90, k=128, kind="int4", group=32, offset_dtype="float32"), None),
        (Case(sizes=(), t=90, kind="int4", group=128, dtype="float16"), 1),
        (Case(sizes=(), t=90, kind="float8_e4m3fn", group=64, out_dtype="float32"), None),
    ],
)
@settings(max_examples=4)
@given(
    sizes=st.lists(st.one_of(st.just(0), st.integers(0, 30)), min_size=4, max_size=4).filter(
        lambda sizes: sum(sizes) <= 90
    )
)
def test_reference_is_within_the_bound_and_reads_no_empty_expert(
    case: Case, layer: int | None, sizes: list[int]
) -> None:
    case = replace(case, sizes=tuple(sizes))
    w = case.weights(stack=(2,) if layer else ())
    out = grouped_gemm(
        case.activations(),
        poisoned(w, sizes),
        sizes,
        layer=layer,
        out_dtype=case.out_dtype,
        backend="reference",
    )
    assert out.dtype == (case.out_dtype or case.dtype)
    assert_right(case, np.asarray(out), matrix_of(w, layer) if layer else w)
