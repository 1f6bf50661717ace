"""The kernel itself, run step by step on a CPU with NaN in all memory, against float64."""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pallas_kernels import check_gemm
from pallas_kernels.hybrid_gemm import (
    Config,
    Gemm,
    choose,
    hybrid_gemm,
    pack_weights,
    sm90,
)
from pallas_kernels.mosaic import interpret_params
from tests.pallas_kernels.interpreting import SMALL, operands, races_found, reset, within

TWO_WARPGROUPS = replace(SMALL, tm=128, tn=128, warpgroups=2, sym_stages=3)


@dataclass(frozen=True, kw_only=True)
class Case:
    m: int
    k: int
    n: int
    dtype: str = "bfloat16"
    out_dtype: str | None = None
    w_layout: str = "kn"
    tiles: bool = False
    config: Config = SMALL
    alphas: tuple[float, ...] = (0.5, 1.0)

    def gemm(self) -> Gemm:
        m, k, n = -(-self.m // 8) * 8, -(-self.k // 64) * 64, -(-self.n // 64) * 64
        out = self.out_dtype or self.dtype
        return Gemm(m=m, k=k, n=n, dtype=self.dtype, out_dtype=out)


def clustered(size: int) -> Config:
    return replace(SMALL, cluster=size, sm_count=2 * size)


CASES = {
    "three passes, last one short": Case(
        m=128, k=320, n=192, out_dtype="float32", alphas=(0.0, 0.5, 1.0)
    ),
    "ragged everywhere": Case(m=133, k=201, n=150),
    "one row": Case(m=1, k=70, n=50),
    "five rows, f16": Case(m=5, k=128, n=130, dtype="float16"),
    "N smaller than a strip": Case(m=72, k=192, n=64, config=replace(SMALL, tn=128)),
    "W as [N, K]": Case(m=136, k=200, n=192, w_layout="nk", dtype="float16", out_dtype="float32"),
    "tiles, of [N, K], two warpgroups": Case(
        m=136, k=200, n=320, w_layout="nk", tiles=True, config=TWO_WARPGROUPS, alphas=(0.5,)
    ),
    "tiles, of [K, N], cluster of 2": Case(m=136, k=256, n=192, tiles=True, config=clustered(2)),
    "equal passes": Case(m=64, k=384, n=128, config=replace(SMALL, stagger=False), alphas=(0.0,)),
    "two warpgroups": Case(m=200, k=192, n=256, config=TWO_WARPGROUPS),
    "two warpgroups, f32": Case(
        m=136, k=256, n=128, config=TWO_WARPGROUPS, out_dtype="float32", alphas=(0.0,)
    ),
    "cluster of 2": Case(m=264, k=192, n=192, config=clustered(2)),
    "cluster of 4, [N, K]": Case(m=200, k=128, n=128, config=clustered(4), w_layout="nk"),
    "cluster of 4, X multicast, a group of strips cut by N": Case(
        m=136, k=320, n=320, config=clustered(4), alphas=(0.0,)
    ),
    "cluster of 8, wider than M": Case(m=100, k=64, n=128, config=clustered(8), alphas=(0.5,)),
}


def run(x: Any, w: Any, alpha: float, **options: Any) -> np.ndarray:
    return within(lambda: np.asarray(hybrid_gemm(x, w, alpha, backend="interpret", **options)))


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_within_the_bound_at_every_alpha(case: Case) -> None:
    x, stored, w = operands(case.m, case.k, case.n, dtype=case.dtype, w_layout=case.w_layout)
    packed = pack_weights(stored, case.w_layout, tiles=case.tiles)  # type: ignore[arg-type]
    for alpha in case.alphas:
        out = run(
            x,
            packed,
            alpha,
            cluster=case.config.cluster,
            config=case.config,
            out_dtype=case.out_dtype,
        )
        assert out.dtype == (case.out_dtype or case.dtype)
        found = check_gemm(out, np.asarray(x), w)
        assert found.ok, (alpha, found)


def test_every_sm_split_and_limit_gives_the_product() -> None:
    x, w, _ = operands(136, 192, 256)
    for limit in (2, 4):
        for split in range(1, limit):
            out = run(x, w, 0.5, sm_limit=limit, sm_split=split, config=SMALL)
            found = check_gemm(out, np.asarray(x), w)
            assert found.ok, (limit, split, found)
    for alpha in (0.0, 1.0):  # one SM runs one path
        out = run(x, w, alpha, sm_limit=1, config=SMALL)
        assert check_gemm(out, np.asarray(x), w).ok


@pytest.mark.parametrize("w_layout", ["kn", "nk"])
def test_layer_of_a_stack_is_chosen_at_run_time(w_layout: str) -> None:
    layers = [operands(72, 128, 128, seed=i, w_layout=w_layout) for i in range(3)]
    x = layers[0][0]
    stack = jnp.stack([jnp.asarray(stored) for _, stored, _ in layers])
    for layer in (0, 2):
        out = run(x, stack, 0.5, layer=layer, w_layout=w_layout, config=SMALL)
        assert check_gemm(out, np.asarray(x), layers[layer][2]).ok


def test_layers_in_a_scan_with_traced_scalars() -> None:
    ws = [operands(8, 128, 128, seed=i)[2] for i in range(2)]
    x = operands(8, 128, 128)[0]
    stack = jnp.stack([jnp.asarray(w) for w in ws])

    @jax.jit
    def every_layer(x: jax.Array, stack: jax.Array, alpha: jax.Array) -> jax.Array:
        def step(carry: None, layer: jax.Array) -> tuple[None, jax.Array]:
            out = hybrid_gemm(x, stack, alpha, layer=layer, config=SMALL, backend="interpret")
            return carry, out

        return jax.lax.scan(step, None, jnp.arange(2))[1]

    outs = within(lambda: np.asarray(every_layer(x, stack, jnp.float32(0.5))))
    for out, w in zip(outs, ws, strict=True):
        assert check_gemm(out, np.asarray(x), w).ok


def test_w_in_host_memory_gives_the_same_bits() -> None:
    x, w, _ = operands(72, 128, 128)
    on_device = jnp.asarray(w)
    in_host = jax.device_put(on_device, on_device.sharding.with_memory_kind("pinned_host"))
    a, b = (run(x, each, 0.5, config=SMALL) for each in (on_device, in_host))
    np.testing.assert_array_equal(a.view(np.uint16), b.view(np.uint16))


def test_repeats_bit_by_bit() -> None:
    x, w, _ = operands(136, 320, 192)
    a, b = (run(x, w, 1 / 3, config=SMALL) for _ in range(2))
    np.testing.assert_array_equal(a.view(np.uint16), b.view(np.uint16))


@pytest.mark.slow
@settings(max_examples=5)
@given(
    m=st.integers(1, 150),
    k=st.integers(1, 300),
    n=st.integers(1, 200),
    seed=st.integers(0, 2**32 - 1),
    dtype=st.sampled_from(["bfloat16", "float16"]),
    f32=st.booleans(),
    w_layout=st.sampled_from(["kn", "nk"]),
    alpha=st.floats(0, 1),
    sms=st.integers(2, 5),
)
def test_any_shape_type_alpha_and_split(
    m: int, k: int, n: int, seed: int, dtype: str, f32: bool, w_layout: Any, alpha: float, sms: int
) -> None:
    out_dtype = "float32" if f32 else dtype
    x, stored, w = operands(m, k, n, seed=seed, dtype=dtype, w_layout=w_layout)
    config = replace(SMALL, sm_count=sms)
    out = run(x, pack_weights(stored, w_layout), alpha, config=config, out_dtype=out_dtype)
    assert check_gemm(out, np.asarray(x), w).ok


def test_columns_without_an_sm_would_be_nan() -> None:
    """The positive control: what `plan_launch` refuses is seen if it is launched all the same."""
    gemm = Gemm(m=64, k=64, n=192)
    kernel = jax.jit(sm90.build(gemm, SMALL, interpret=interpret_params()))
    x, w, _ = operands(64, 64, 192)
    scalars = np.array([2, 0, 4, 0], np.int32)  # two strips of SymGEMM, no cluster for it
    out = within(lambda: np.asarray(kernel(x, jnp.asarray(w), scalars)))
    assert np.isnan(out[:, :128].astype(np.float32)).all()
    assert check_gemm(out[:, 128:], np.asarray(x), w[:, 128:]).ok


def racing(gemm: Gemm, config: Config, scalars: list[int]) -> bool:
    kernel = jax.jit(sm90.build(gemm, config, interpret=interpret_params(detect_races=True)))
    x, w, _ = operands(gemm.m, gemm.k, gemm.n)
    reset()
    out = within(lambda: np.asarray(kernel(x, jnp.asarray(w), np.array(scalars, np.int32))))
    assert out.shape == (gemm.m, gemm.n)
    return races_found()


@pytest.mark.parametrize("size", [1, 2])
def test_no_race(size: int, capfd: pytest.CaptureFixture[str]) -> None:
    assert not racing(Gemm(m=136, k=192, n=192), clustered(size), [1, 1, 2, 0])


def test_the_race_detector_sees_a_missing_fence(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    without = SimpleNamespace(**{**vars(sm90.plgpu), "commit_smem": lambda: None})
    monkeypatch.setattr(sm90, "plgpu", without)
    assert racing(Gemm(m=64, k=64, n=128), SMALL, [1, 2, 4, 0])
    reset()


@pytest.mark.slow
@pytest.mark.parametrize(("m", "alpha"), [(16, 0.5), (100, 0.5), (300, 0.5), (300, 0.0)])
def test_configurations_in_use(m: int, alpha: float) -> None:
    """The tile families of `choose`, with as few SMs as show both paths."""
    gemm = Gemm(m=-(-m // 8) * 8, k=640, n=256)
    config = choose(gemm, sm_count=3)
    x, w, _ = operands(m, 640, 256)
    out = run(x, w, alpha, config=config)
    assert check_gemm(out, np.asarray(x), w).ok
