"""Laws of every op, dataflow, cluster, layout and odd size: one suite for all of them."""

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

from pallas_kernels import KernelUnavailable, missing
from pallas_kernels import device as present_device
from pallas_kernels.gemm import dequantise, epilogue, plan_launch, scales_weights, sm90, tables_of
from pallas_kernels.gemm.config import sum_size
from pallas_kernels.gemm.reference import sums_of
from pallas_kernels.host_memory import to_host
from pallas_kernels.mosaic import interpret_params
from tests.compilations import compilations
from tests.pallas_kernels.gemm.cases import CONVERTING, Case, clustered, poisoned, same
from tests.pallas_kernels.gemm.suite import (
    CASES,
    GGUF,
    IN_TURN,
    INT4,
    OF_EACH,
    QUICK,
    each_op,
    each_part,
)
from tests.pallas_kernels.interpreting import SMALL, races_found, reset, within
from tests.tiers import tiered


def scalars_of(case: Case, alpha: float) -> np.ndarray:
    plan = plan_launch(case.gemm, case.config, alpha=alpha, layer=None)
    fields = (plan.sym_strips, plan.sym_clusters, plan.active_clusters, plan.layer)
    return np.array(fields, np.int32)


def built(case: Case, scalars: np.ndarray, *, detect_races: bool = False) -> np.ndarray:
    """Run a kernel as it is built, without what the op checks, with NaN in unwritten memory."""
    gemm, (x, w, _) = case.gemm, case.operands()
    kernel = jax.jit(
        sm90.build(gemm, case.config, interpret=interpret_params(detect_races=detect_races))
    )
    x = jnp.pad(x, ((0, gemm.x_rows - case.m), (0, gemm.k - case.k)))
    arrays = [getattr(w, "data", w)]
    if case.weights is not None:
        arrays.append(w.scales)
        if w.offsets is not None:
            arrays += [w.offsets, sums_of(x, sum_size(case.config, gemm))]
    if case.sizes is not None:
        tables, blocks = tables_of(np.array(case.sizes, np.int32), gemm, case.config, np)
        arrays += tables
        scalars = np.concatenate([scalars, blocks])
    reset()
    return within(lambda: np.asarray(kernel(x, *map(jnp.asarray, arrays), scalars)))


@pytest.mark.parametrize(
    "case", tiered(CASES.values(), *(CASES[name] for name in QUICK)), ids=CASES.keys()
)
def test_equal_to_float64_to_the_bit_in_every_dataflow(case: Case) -> None:
    x, w, exact = case.operands()
    if case.sizes is not None and not (case.weights and case.weights.kind == "float8_e4m3fn"):
        w = poisoned(case, w, case.sizes)
    for alpha in case.tried:
        same(case.run(x, w, alpha=alpha), case.right(x, exact))
    scaled = scales_weights(case.config, case.gemm) if case.weights else False
    assert scaled == (case.config.tm == 256)


@each_op
def test_the_reference_is_as_exact(case: Case) -> None:
    x, w, exact = case.operands()
    same(np.asarray(case.call(x, w, backend="reference")), case.right(x, exact))
    same(np.asarray(case.call(x, w)), case.right(x, exact))  # here "auto" is the reference


def test_an_expert_that_is_read_would_spoil_its_rows() -> None:
    """The positive control of the poison, and of rows staying apart."""
    case = Case(m=40, k=64, n=64, sizes=(13, 1, 26))
    x, w, exact = case.operands()
    out = case.run(x, poisoned(case, w, (1, 0, 1)), alpha=1.0)
    assert np.isnan(out[13].astype(np.float32)).all()
    right = case.right(x, exact)
    same(np.delete(out, 13, 0), np.delete(right, 13, 0))


@each_part
def test_layers_in_a_scan_with_traced_scalars(case: Case) -> None:
    x, stack, exact = case.operands(stack=(2,))
    sizes = None if case.sizes is None else jnp.asarray(case.sizes)

    @jax.jit
    def every_layer(x: jax.Array, w: Any, alpha: jax.Array, sms: jax.Array) -> jax.Array:
        def step(carry: None, layer: jax.Array) -> tuple[None, jax.Array]:
            options = {"alpha": alpha, "sm_limit": sms, "layer": layer, "sizes": sizes}
            return carry, case.call(x, w, backend="interpret", **options)

        return jax.lax.scan(step, None, jnp.arange(2))[1]

    outs = within(lambda: np.asarray(every_layer(x, stack, jnp.float32(0.5), jnp.int32(3))))
    for out, w in zip(outs, exact, strict=True):
        same(out, case.right(x, w))


@each_op
def test_run_time_values_do_not_recompile_with_weights_in_host_memory(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    builds: list[Any] = []
    build = sm90.build
    monkeypatch.setattr(sm90, "build", lambda *a, **k: builds.append(a) or build(*a, **k))
    x, stack, exact = case.operands(stack=(2,))
    other = None if case.sizes is None else np.array([30, *[0] * (len(case.sizes) - 1)])
    placed = to_host(stack)

    def run(sizes: Any = None, **options: Any) -> None:
        out = case.run(x, placed, sizes=sizes, **options)
        same(out, case.right(x, exact[int(options["layer"])], sizes))

    run(alpha=0.5, layer=0)
    # jax's interpreter registers an option of jax in its first run, which is a cache miss once
    last = jnp.int32(1)
    run(alpha=0.0, layer=last, sm_limit=1)  # jax compiles the stacking of scalars
    with compilations() as seen:
        builds.clear()
        run(other, alpha=np.float32(0.7), layer=0, sm_limit=np.int64(4), sm_split=3)
        run(alpha=1, layer=last, sm_limit=1)  # one SM runs one path
    assert not builds
    assert not seen


def test_another_configuration_does_recompile() -> None:
    """The positive control."""
    case = Case(m=8, k=64, n=64)
    x, w, exact = case.operands()
    case.run(x, w, alpha=1.0)
    with compilations() as seen:
        out = case.run(x, w, alpha=1.0, config=replace(case.config, x_stages=3))
    same(out, case.right(x, exact))
    assert seen


@each_op
def test_reference_compiles_once_too(case: Case) -> None:
    x, stack, exact = case.operands(stack=(2,))
    case.call(x, stack, alpha=0.5, layer=0, backend="reference")
    with compilations() as seen:
        for alpha, layer in ((0, 0), (0.9, 1), (1.0, 0)):
            out = case.call(x, stack, alpha=alpha, layer=layer, sm_limit=3, backend="reference")
            same(np.asarray(out), case.right(x, exact[layer]))
    assert not seen


RACES = {
    "hybrid": Case(m=72, k=192, n=128),
    "hybrid, cluster of 2": Case(m=136, k=192, n=128, config=clustered(SMALL, 2)),
    # float32, whose sums are in O: the detector takes all that has the bytes of another for one
    # (`test_plans` has the bytes of each warpgroup)
    "hybrid, in turn": Case(m=136, k=192, n=128, config=IN_TURN, out_dtype="float32"),
    "quantized, offsets, cluster of 2": Case(
        m=72, k=384, n=128, weights=GGUF, config=clustered(CONVERTING, 2)
    ),
    "grouped, quantized": Case(
        m=72, k=256, n=128, sizes=(5, 0, 66), weights=INT4, config=CONVERTING
    ),
}


@pytest.mark.parametrize(
    "case",
    tiered(RACES.values(), RACES["hybrid, cluster of 2"], RACES["grouped, quantized"]),
    ids=RACES.keys(),
)
def test_no_race(case: Case, capfd: pytest.CaptureFixture[str]) -> None:
    x, _, exact = case.operands()
    out = built(case, scalars_of(case, 0.5), detect_races=True)
    assert not races_found()
    same(out[: case.m, : case.n], case.right(x, exact))


@pytest.mark.parametrize("name", ["hybrid", "grouped, quantized"])
def test_the_race_detector_sees_a_missing_fence(
    name: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    for module in (epilogue, dequantise):
        without = SimpleNamespace(**{**vars(module.plgpu), "commit_smem": lambda: None})
        monkeypatch.setattr(module, "plgpu", without)
    built(RACES[name], scalars_of(RACES[name], 0.5), detect_races=True)
    assert races_found()
    reset()


@each_part
def test_columns_without_an_sm_would_be_nan(case: Case) -> None:
    """The positive control: what `plan_launch` refuses is seen if it is launched all the same."""
    x, _, exact = case.operands()
    # the first strip to SymGEMM, which has no cluster
    out = built(case, np.array([1, 0, 4, 0], np.int32))[: case.m, : case.n]
    rows = slice(0, sum(case.sizes) if case.sizes else case.m)
    assert np.isnan(out[rows, :64].astype(np.float32)).all()
    same(out[:, 64:], case.right(x, exact)[:, 64:])


SIZES = st.lists(st.integers(0, 40), min_size=3, max_size=3).map(
    lambda cuts: np.diff([0, *sorted(cuts)]).tolist()
)


@settings(max_examples=4)
@given(sizes=SIZES, sms=st.integers(2, 4), alpha=st.sampled_from([0.0, 0.5, 1.0]))
@example(sizes=[0, 0, 0], sms=2, alpha=0.5)
@example(sizes=[0, 40, 0], sms=3, alpha=0.0)
@example(sizes=[7, 8, 9], sms=4, alpha=0.5)
def test_any_sizes_of_groups_in_one_kernel(sizes: list[int], sms: int, alpha: float) -> None:
    case = OF_EACH["grouped"]
    x, w, exact = case.operands()
    out = case.run(x, poisoned(case, w, sizes), sizes=np.array(sizes), sm_limit=sms, alpha=alpha)
    same(out, case.right(x, exact, sizes))


@pytest.mark.parametrize("backend", ["interpret", "reference"])
def test_traced_sizes_out_of_range_are_clamped(backend: str) -> None:
    case = OF_EACH["grouped"]
    x, w, exact = case.operands()
    run = jax.jit(lambda s: case.call(x, w, sizes=s, alpha=0.5, backend=backend))
    for given_sizes, meant in (
        ([30, 30, 30], [30, 10, 0]),
        ([-5, 12, 3], [0, 12, 3]),
        ([2**31 - 1, -(2**31), 2**31 - 1], [40, 0, 0]),
    ):
        as_given = np.array(given_sizes, np.int32)
        out = within(lambda s=as_given: np.asarray(run(s)))  # type: ignore[misc]
        same(out, case.right(x, exact, meant))


@each_op
def test_sm90_says_what_is_missing_and_a_derivative_is_refused(case: Case) -> None:
    x, w, _ = case.operands()
    if reason := missing("sm90", present_device()):
        with pytest.raises(KernelUnavailable) as refusal:
            case.call(x, w, backend="sm90")
        assert reason in str(refusal.value)

    def loss(x: jax.Array) -> jax.Array:
        return case.call(x, w, backend="reference").astype(jnp.float32).sum()

    with pytest.raises(NotImplementedError, match=f"{case.op} has no derivative"):
        jax.grad(loss)(x)
