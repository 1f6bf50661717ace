"""What holds for every op, dataflow, cluster, layout and odd size: one suite for all of them.

The kernel itself is run step by step on a CPU, with NaN in all memory that nobody wrote.
"""

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
from pallas_kernels.gemm import (
    Config,
    Quantised,
    dequantise,
    epilogue,
    launch_traffic,
    plan_launch,
    scales_weights,
    sm90,
    tables_of,
)
from pallas_kernels.gemm.config import rings, sum_size
from pallas_kernels.gemm.reference import sums_of
from pallas_kernels.host_memory import to_host
from pallas_kernels.mosaic import interpret_params
from tests.compilations import compilations
from tests.pallas_kernels.gemm.cases import (
    CONVERTING,
    OUTPUT_ONLY,
    Case,
    clustered,
    poisoned,
    same,
)
from tests.pallas_kernels.interpreting import SMALL, count_copies, races_found, reset, within

WIDE = replace(SMALL, tm=128, tn=128, warpgroups=2, x_stages=3, w_stages=3)
INT4 = Quantised(kind="int4", group=128)
GGUF = Quantised(kind="int4", group=32, scale_dtype="float16", offset_dtype="float32")

PLAIN = {
    "three passes, last one short": Case(m=128, k=320, n=192, out_dtype="float32"),
    "ragged everywhere": Case(m=133, k=201, n=150, alphas=(0.5, 1.0)),
    "one row": Case(m=1, k=70, n=50, alphas=(0.0,)),
    "five rows, f16": Case(m=5, k=128, n=130, dtype="float16", alphas=(0.5,)),
    "N smaller than a strip": Case(m=72, k=192, n=64, config=replace(SMALL, tn=128)),
    "[N, K], f16 to f32": Case(
        m=136, k=200, n=192, w_layout="nk", dtype="float16", out_dtype="float32"
    ),
    "tiles, of [N, K], two warpgroups": Case(
        m=136, k=200, n=320, w_layout="nk", tiles=True, config=WIDE, alphas=(0.5,)
    ),
    "tiles, of [K, N], cluster of 2": Case(
        m=136, k=256, n=192, tiles=True, config=clustered(SMALL, 2)
    ),
    "equal passes": Case(m=64, k=384, n=128, config=replace(SMALL, stagger=False), alphas=(0.0,)),
    "SymGEMM alone": Case(m=200, k=192, n=150, config=replace(SMALL, kc=0)),
    "cluster of 4, [N, K]": Case(
        m=200, k=128, n=128, config=clustered(SMALL, 4), w_layout="nk", alphas=(0.5,)
    ),
    "cluster of 4, a group of strips cut by N": Case(
        m=136, k=320, n=320, config=clustered(SMALL, 4), alphas=(0.0,)
    ),
    "cluster of 8, wider than M": Case(
        m=100, k=64, n=128, config=clustered(SMALL, 8), alphas=(0.5,)
    ),
}
QUANTISED = {
    "int8": Case(m=136, k=600, n=150, weights=Quantised(), config=CONVERTING),
    "int8, one row, any K and N": Case(m=1, k=100, n=50, weights=Quantised(), config=OUTPUT_ONLY),
    "int8, groups of 64, [cluster of 2]": Case(
        m=72,
        k=500,
        n=192,
        weights=Quantised(group=64, scale_dtype="bfloat16"),
        config=clustered(replace(CONVERTING, tk=64), 2),
    ),
    "int8, groups of 256, two warpgroups, f16": Case(
        m=70,
        k=768,
        n=256,
        dtype="float16",
        weights=Quantised(group=256),
        config=replace(CONVERTING, tn=128, warpgroups=2, kc=512),
        alphas=(0.5,),
    ),
    "int4, groups": Case(m=136, k=640, n=192, weights=INT4, config=CONVERTING, out_dtype="float32"),
    "int4, wide X tiles": Case(
        m=70, k=384, n=64, weights=INT4, config=replace(CONVERTING, x_columns=128), alphas=(0.0,)
    ),
    "int4, groups of 32, offsets": Case(m=100, k=600, n=70, weights=GGUF, config=CONVERTING),
    "int4, eight rows, groups of 32, offsets, wide X tiles": Case(
        m=9, k=400, n=64, weights=GGUF, config=replace(OUTPUT_ONLY, tm=8, x_columns=128)
    ),
    "groups of 96, offsets, cluster of 2": Case(
        m=140,
        k=900,
        n=192,
        weights=Quantised(group=96, offset_dtype="float16"),
        config=clustered(replace(CONVERTING, kc=384), 2),
        alphas=(0.4,),
    ),
    "per channel, offsets, cluster of 2": Case(
        m=136,
        k=640,
        n=128,
        weights=Quantised(offset_dtype="float32"),
        config=clustered(CONVERTING, 2),
        alphas=(0.5,),
    ),
    "fp8, groups, K steps of 256": Case(
        m=72,
        k=512,
        n=128,
        weights=Quantised(kind="float8_e4m3fn", group=256),
        config=replace(CONVERTING, tk=256),
        alphas=(0.5,),
    ),
    "fp8, cluster of 8": Case(
        m=70,
        k=128,
        n=64,
        weights=Quantised(kind="float8_e4m3fn"),
        config=clustered(replace(OUTPUT_ONLY, tm=8), 8),
    ),
    "cluster of 4, an odd number of groups": Case(
        m=16, k=640, n=128, weights=INT4, config=clustered(replace(OUTPUT_ONLY, tm=8), 4)
    ),
    "256 rows, scaled weights": Case(
        m=264, k=640, n=128, weights=INT4, config=replace(CONVERTING, tm=256, sm_count=2)
    ),
}
EXPERTS = {
    "empty experts, unaligned ends": Case(m=29, k=128, n=128, sizes=(5, 0, 20, 1, 0, 3)),
    "rows of no expert": Case(m=40, k=128, n=128, sizes=(7, 0, 2)),
    "no expert has rows": Case(m=9, k=128, n=128, sizes=(0, 0)),
    "all rows to the last expert": Case(m=150, k=320, n=192, sizes=(0, 0, 150)),
    "one row that is nobody's": Case(m=1, k=128, n=64, sizes=(0, 0), alphas=(0.0,)),
    "a second block for one row": Case(m=136, k=128, n=192, sizes=(3, 62, 70), alphas=(0.5,)),
    "float16 [N, K] to float32": Case(
        m=81, k=192, n=128, sizes=(9, 0, 70), w_layout="nk", dtype="float16", out_dtype="float32"
    ),
    "two warpgroups": Case(m=221, k=192, n=256, sizes=(90, 0, 131), config=WIDE, alphas=(0.5,)),
    "cluster of 2": Case(m=215, k=256, n=192, sizes=(70, 3, 0, 140), config=clustered(SMALL, 2)),
    "cluster of 8, wider than the rows": Case(
        m=77, k=64, n=128, sizes=(2, 75), config=clustered(SMALL, 8), alphas=(0.5,)
    ),
    "int8": Case(m=100, k=384, n=128, sizes=(0, 71, 3, 0), weights=Quantised(), config=CONVERTING),
    "int4, groups of 32, offsets": Case(
        m=100, k=600, n=70, sizes=(70, 0, 13), weights=GGUF, config=CONVERTING
    ),
    "fp8, groups, cluster of 2, to float32": Case(
        m=40,
        k=256,
        n=128,
        sizes=(7, 0, 30),
        weights=Quantised(kind="float8_e4m3fn", group=128),
        config=clustered(replace(OUTPUT_ONLY, tm=8), 2),
        out_dtype="float32",
    ),
}
CASES = {
    f"{op}, {name}": case
    for op, cases in (("hybrid", PLAIN), ("quantized", QUANTISED), ("grouped", EXPERTS))
    for name, case in cases.items()
}
OF_EACH = {
    "hybrid": Case(m=72, k=192, n=128),
    "quantized": Case(m=72, k=256, n=128, weights=INT4, config=replace(CONVERTING, kc=128)),
    "grouped": Case(m=40, k=64, n=128, sizes=(11, 0, 20)),
    "grouped, quantized": Case(m=40, k=128, n=128, sizes=(0, 33), weights=GGUF, config=CONVERTING),
}
each_op = pytest.mark.parametrize("case", OF_EACH.values(), ids=OF_EACH.keys())


def scalars_of(case: Case, alpha: float) -> np.ndarray:
    plan = plan_launch(case.gemm, case.config, alpha=alpha, layer=None)
    fields = (plan.sym_strips, plan.sym_clusters, plan.active_clusters, plan.layer)
    return np.array(fields, np.int32)


def built(case: Case, scalars: np.ndarray, *, detect_races: bool = False) -> np.ndarray:
    """Run a kernel as it is built, without what the op checks."""
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


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
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


@each_op
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
def test_run_time_values_do_not_recompile_and_host_memory_gives_the_same(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    builds: list[Any] = []
    build = sm90.build
    monkeypatch.setattr(sm90, "build", lambda *a, **k: builds.append(a) or build(*a, **k))
    x, stack, exact = case.operands(stack=(2,))
    other = None if case.sizes is None else np.array([30, *[0] * (len(case.sizes) - 1)])

    def run(w: Any, sizes: Any = None, **options: Any) -> None:
        layer = int(options["layer"])
        out = case.run(x, w, sizes=sizes, **options)
        same(out, case.right(x, exact[layer], sizes))

    run(stack, alpha=0.5, layer=0)
    # jax's interpreter registers an option of jax in its first run, which is a cache miss once
    last = jnp.int32(1)
    run(stack, alpha=0.5, layer=last)  # jax compiles the stacking of scalars
    with compilations() as seen:
        builds.clear()
        run(stack, alpha=0.0, layer=1, sm_limit=np.int64(1))  # one SM runs one path
        run(stack, other, alpha=np.float32(0.7), layer=0, sm_limit=4, sm_split=3)
        run(stack, alpha=1, layer=last, sm_limit=2)
    assert not builds
    assert not seen
    run(to_host(stack), alpha=0.5, layer=1)
    with compilations() as seen:  # the positive control
        out = case.run(x, stack, alpha=0.5, layer=0, config=replace(case.config, asym_stages=3))
    same(out, case.right(x, exact[0]))
    assert builds
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


COUNTED = {
    "both paths, a short last slice": Case(m=256, k=192, n=256, alphas=(0.5,)),
    "tiles of K converted": Case(
        m=136, k=640, n=192, weights=INT4, config=CONVERTING, alphas=(0.0, 0.4, 1.0)
    ),
    "offsets, cluster of 2": Case(
        m=130, k=512, n=192, weights=GGUF, config=clustered(CONVERTING, 2), alphas=(0.5,)
    ),
    "per channel, offsets": Case(
        m=130,
        k=640,
        n=128,
        weights=Quantised(offset_dtype="float32"),
        config=CONVERTING,
        alphas=(0.0, 1.0),
    ),
    "groups of 64, cluster of 8": Case(
        m=70,
        k=512,
        n=64,
        weights=Quantised(group=64),
        config=clustered(replace(OUTPUT_ONLY, tm=8, tk=64), 8),
    ),
    "experts": Case(m=160, k=192, n=128, sizes=(5, 0, 150, 1), alphas=(0.0, 0.5, 1.0)),
    "experts, one row more: a second reading": Case(
        m=257, k=64, n=64, sizes=(130, 127), alphas=(1.0,)
    ),
    "experts, cluster of 2": Case(
        m=270, k=128, n=128, sizes=(3, 250, 0, 8), config=clustered(SMALL, 2), alphas=(0.4,)
    ),
    "experts, none with rows": Case(m=20, k=64, n=64, sizes=(0, 0), alphas=(0.0,)),
    "experts, quantised, offsets": Case(
        m=90, k=384, n=128, sizes=(11, 0, 70), weights=GGUF, config=CONVERTING, alphas=(0.5,)
    ),
}


@pytest.mark.parametrize("case", COUNTED.values(), ids=COUNTED.keys())
def test_counted_copies_are_the_traffic(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    # tm is not tn or tk, so that tiles of X and W differ in shape
    config = case.config
    warpgroups = 2 if case.weights is None else 1
    config = replace(config, tm=128, warpgroups=warpgroups, stagger=False)
    case = replace(case, config=config)
    gemm, (x, w, _) = case.gemm, case.operands()
    w_tile = (config.tk, config.tn)
    if case.weights is not None:
        w_tile = (config.tn, config.tk * gemm.w_bits // 8)
    x_tile = (config.tm, config.x_columns)
    assert w_tile != x_tile
    for alpha in case.tried:
        with monkeypatch.context() as patch:
            copies = count_copies(patch)
            case.run(x, w, alpha=alpha)
        plan = plan_launch(gemm, config, alpha=alpha)
        sizes = None if case.sizes is None else np.array(case.sizes)
        model = launch_traffic(gemm, config, plan, group_sizes=sizes)

        def once(
            load: Any, shared_in_sym: bool, plan: Any = plan, config: Config = config
        ) -> float:
            """The GPU loads a multicast tile once, interpret mode once for each CTA."""
            is_sym = load.cluster < plan.sym_clusters
            return load.nbytes / (config.cluster if is_sym == shared_in_sym else 1)

        of_w = [load for load in copies.loads if load.tile == w_tile]
        of_x = [load for load in copies.loads if load.tile == x_tile]
        others = [load for load in copies.loads if load.tile not in (w_tile, x_tile)]
        assert sum(once(load, True) for load in of_w) == model.w_bytes
        assert sum(once(load, False) for load in of_x) == model.x_load_bytes
        sums = {
            (rings(config, gemm, flow).sum_rows, config.tm)
            for flow in (("sym", "asym") if config.kc else ("sym",))
        }
        of_sums = [o for o in others if case.weights and o.tile in sums and o.of == "float32"]
        of_sums = of_sums if case.weights and case.weights.offset_dtype else []
        assert sum(load.nbytes for load in of_sums) == model.x_sum_bytes
        rest = [load for load in others if load not in of_sums]
        shared = gemm.groups > 1
        found = sum(once(load, True) if shared else load.nbytes for load in rest)
        assert found == model.scale_bytes
        of_o = [s for s in copies.stores if s.of == case.out]
        assert sum(s.nbytes for s in of_o) == model.o_store_bytes
        of_partial = [s for s in copies.stores if s.of == "float32" and s not in of_o]
        assert bool(of_partial) == (model.sums_store_bytes > 0)


RACES = {
    "hybrid": Case(m=136, k=192, n=192),
    "hybrid, cluster of 2": Case(m=136, k=192, n=192, config=clustered(SMALL, 2)),
    "quantized, offsets": Case(m=72, k=512, n=128, weights=GGUF, config=CONVERTING),
    "quantized, cluster of 2": Case(
        m=72, k=384, n=128, weights=INT4, config=clustered(CONVERTING, 2)
    ),
    "grouped": Case(m=120, k=192, n=128, sizes=(70, 0, 3, 40)),
    "grouped, quantized": Case(
        m=72, k=256, n=128, sizes=(5, 0, 66), weights=INT4, config=CONVERTING
    ),
}


@pytest.mark.parametrize("case", RACES.values(), ids=RACES.keys())
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


@each_op
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


@pytest.mark.slow
@settings(max_examples=6)
@given(
    m=st.integers(1, 150),
    k=st.integers(1, 300),
    n=st.integers(1, 200),
    seed=st.integers(0, 2**32 - 1),
    dtype=st.sampled_from(["bfloat16", "float16"]),
    f32=st.booleans(),
    weights=st.sampled_from([None, Quantised(), INT4, GGUF]),
    alpha=st.floats(0, 1),
    sms=st.integers(2, 5),
)
def test_any_shape_type_alpha_and_split(
    m: int,
    k: int,
    n: int,
    seed: int,
    dtype: str,
    f32: bool,
    weights: Quantised | None,
    alpha: float,
    sms: int,
) -> None:
    config = replace(SMALL if weights is None else CONVERTING, sm_count=sms)
    out = "float32" if f32 else None
    case = Case(m=m, k=k, n=n, dtype=dtype, out_dtype=out, weights=weights, config=config)
    x, w, exact = case.operands(seed)
    same(case.run(x, w, alpha=alpha), case.right(x, exact))


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
