"""The kernel itself, run step by step on a CPU with NaN in all memory, against float64."""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pallas_kernels.grouped_gemm import (
    Config,
    GroupedGemm,
    choose,
    grouped_gemm,
    launch_traffic,
    sm90,
)
from pallas_kernels.grouped_gemm.schedule import block_table
from pallas_kernels.mosaic import interpret_params
from tests.pallas_kernels.grouped_gemm.cases import SMALL, assert_right, operands, poisoned, stored
from tests.pallas_kernels.interpreting import count_copies, races_found, reset, within

TWO_WARPGROUPS = replace(SMALL, tm=128, tn=128, warpgroups=2, stages=3)


def clustered(size: int) -> Config:
    return replace(SMALL, cluster=size, sm_count=2 * size)


@dataclass(frozen=True, kw_only=True)
class Case:
    sizes: tuple[int, ...]
    t: int
    k: int = 128
    n: int = 128
    dtype: str = "bfloat16"
    out_dtype: str | None = None
    w_layout: str = "kn"
    config: Config = SMALL


CASES = {
    "empty experts, unaligned ends": Case(sizes=(5, 0, 20, 1, 0, 3), t=29),
    "rows of no expert": Case(sizes=(7, 0, 2), t=40),
    "no expert has rows": Case(sizes=(0, 0), t=9),
    "all rows to the last expert": Case(sizes=(0, 0, 150), t=150),
    "one row": Case(sizes=(0, 1, 0), t=1),
    "one row that is nobody's": Case(sizes=(0, 0), t=1),
    "a second block for one row": Case(sizes=(3, 62, 70), t=136, n=192),  # rows 3 to 64
    "whole tiles": Case(sizes=(64, 128), t=192),
    "float16 [N, K] to float32": Case(
        sizes=(9, 0, 70), t=81, w_layout="nk", dtype="float16", out_dtype="float32"
    ),
    "N no multiple of a strip": Case(sizes=(30, 11), t=44, n=192, config=replace(SMALL, tn=128)),
    "two warpgroups": Case(sizes=(90, 0, 131), t=221, k=192, config=TWO_WARPGROUPS),
    "two warpgroups, one store slot": Case(
        sizes=(3, 101), t=130, config=replace(TWO_WARPGROUPS, tn=64), out_dtype="bfloat16"
    ),
    "cluster of 2": Case(sizes=(70, 3, 0, 140), t=215, config=clustered(2)),
    "cluster of 4, [N, K]": Case(
        sizes=(0, 200, 9), t=230, k=64, config=clustered(4), w_layout="nk"
    ),
    "cluster of 8, wider than the rows": Case(sizes=(2, 75), t=77, k=64, config=clustered(8)),
}


def run(x: Any, w: Any, sizes: Any, **options: Any) -> np.ndarray:
    return within(lambda: np.asarray(grouped_gemm(x, w, sizes, backend="interpret", **options)))


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_within_the_bound_and_empty_experts_unread(case: Case) -> None:
    x, w = operands(case.t, case.k, case.n, len(case.sizes), dtype=case.dtype)
    out = run(
        x,
        stored(poisoned(w, case.sizes), case.w_layout),
        np.array(case.sizes),
        cluster=case.config.cluster,
        config=case.config,
        out_dtype=case.out_dtype,
        w_layout=case.w_layout,
    )
    assert out.dtype == (case.out_dtype or case.dtype)
    assert_right(out, x, w, case.sizes)


def test_an_expert_that_is_read_would_spoil_its_rows() -> None:
    """The positive control of the poison, and of rows staying apart."""
    x, w = operands(40, 64, 64, 3)
    sizes = (13, 1, 26)
    w[1] = np.nan
    out = run(x, jnp.asarray(w), np.array(sizes), config=SMALL)
    assert np.isnan(out[13].astype(np.float32)).all()
    assert_right(out[:13], x[:13], w[:1], sizes[:1])
    assert_right(out[14:], x[14:], w[2:], sizes[2:])


T, E = 90, 4
sizes_within = st.lists(st.integers(0, T), min_size=E - 1, max_size=E - 1).flatmap(
    lambda cuts: st.integers(0, T).map(
        lambda total: np.diff(np.minimum([0, *sorted(cuts), total], total)).tolist()
    )
)


@settings(max_examples=12)
@given(sizes=sizes_within, sms=st.integers(1, 4), seed=st.integers(0, 2**32 - 1))
@example(sizes=[0, 0, 0, 0], sms=1, seed=0)
@example(sizes=[0, 90, 0, 0], sms=3, seed=0)
@example(sizes=[7, 8, 9, 1], sms=4, seed=0)
def test_any_sizes_and_sm_limit(sizes: list[int], sms: int, seed: int) -> None:
    x, w = operands(T, 64, 128, E, seed=seed)
    out = run(x, poisoned(w, sizes), np.array(sizes), sm_limit=sms, config=SMALL)
    assert_right(out, x, w, sizes)


@pytest.mark.parametrize("w_layout", ["kn", "nk"])
def test_layer_of_a_stack_is_chosen_at_run_time(w_layout: str) -> None:
    sizes = (11, 0, 30)
    layers = [operands(45, 64, 128, 3, seed=i) for i in range(3)]
    x = layers[0][0]
    stack = jnp.stack([stored(poisoned(w, sizes), w_layout) for _, w in layers])
    for layer in (0, 2):
        out = run(x, stack, np.array(sizes), layer=layer, w_layout=w_layout, config=SMALL)
        assert_right(out, x, layers[layer][1], sizes)


def test_layers_in_a_scan_with_traced_sizes() -> None:
    layers = [operands(40, 64, 64, 3, seed=i) for i in range(2)]
    x, stack = layers[0][0], jnp.stack([jnp.asarray(w) for _, w in layers])
    sizes = np.array([[9, 0, 31], [0, 17, 4]], np.int32)

    @jax.jit
    def every_layer(x: jax.Array, stack: jax.Array, sizes: jax.Array, sms: jax.Array) -> jax.Array:
        def step(carry: None, layer: jax.Array) -> tuple[None, jax.Array]:
            out = grouped_gemm(
                x, stack, sizes[layer], layer=layer, sm_limit=sms, config=SMALL, backend="interpret"
            )
            return carry, out

        return jax.lax.scan(step, None, jnp.arange(2))[1]

    outs = within(lambda: np.asarray(every_layer(x, stack, sizes, jnp.int32(3))))
    for out, (_, w), of_layer in zip(outs, layers, sizes, strict=True):
        assert_right(out, x, w, of_layer)


@pytest.mark.parametrize("backend", ["interpret", "reference"])
def test_traced_sizes_out_of_range_are_clamped(backend: str) -> None:
    x, w = operands(40, 64, 64, 3)
    run_it = jax.jit(lambda s: grouped_gemm(x, w, s, config=SMALL, backend=backend))
    for given_sizes, meant in (
        ([30, 30, 30], [30, 10, 0]),
        ([-5, 12, 3], [0, 12, 3]),
        ([2**31 - 1, -(2**31), 2**31 - 1], [40, 0, 0]),
    ):
        sizes = np.array(given_sizes, np.int32)
        out = within(lambda s=sizes: np.asarray(run_it(s)))  # type: ignore[misc]
        assert_right(out, x, w, meant)


def test_w_in_host_memory_gives_the_same_bits() -> None:
    x, w = operands(30, 64, 64, 2)
    on_device = jnp.asarray(w)
    in_host = jax.device_put(on_device, on_device.sharding.with_memory_kind("pinned_host"))
    a, b = (run(x, each, np.array([9, 20]), config=SMALL) for each in (on_device, in_host))
    np.testing.assert_array_equal(a.view(np.uint16), b.view(np.uint16))


def test_a_row_does_not_depend_on_other_groups() -> None:
    x, w = operands(100, 64, 64, 3)
    whole = run(x, w, np.array([30, 70, 0]), config=SMALL)
    other = run(x, w, np.array([30, 37, 33]), config=SMALL)
    np.testing.assert_array_equal(whole[:67].view(np.uint16), other[:67].view(np.uint16))


@pytest.mark.parametrize(
    ("sizes", "t", "cluster", "w_layout"),
    [
        ((5, 0, 150, 1), 160, 1, "kn"),
        ((5, 0, 150, 1), 160, 1, "nk"),
        ((130, 126), 256, 1, "kn"),  # the second one begins at row 130: 2 rows before, 128 in all
        ((130, 127), 257, 1, "kn"),  # one row more: a second reading
        ((3, 250, 0, 8), 270, 2, "kn"),
        ((0, 0, 0), 50, 1, "kn"),
    ],
)
def test_counted_copies_equal_the_traffic_model(
    sizes: tuple[int, ...],
    t: int,
    cluster: int,
    w_layout: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # tm is not tn or tk, so that tiles of X and W differ in shape
    config = Config(tm=128, tn=64, stages=2, warpgroups=2, cluster=cluster, sm_count=4)
    x, w = operands(t, 128, 192, len(sizes))
    counted = count_copies(monkeypatch)
    out = run(
        x,
        stored(poisoned(w, sizes), w_layout),
        np.array(sizes),
        config=config,
        cluster=cluster,
        w_layout=w_layout,
    )
    assert_right(out, x, w, sizes)
    gemm = GroupedGemm(t=t, k=128, n=192, experts=len(sizes))
    model = launch_traffic(gemm, config, np.array(sizes))
    x_tile = (config.tm, config.tk)
    x_bytes = sum(load.nbytes for load in counted.loads if load.tile == x_tile)
    # The GPU loads a multicast tile once for the cluster, interpret mode once for each CTA.
    w_bytes = sum(load.nbytes for load in counted.loads if load.tile != x_tile) / cluster
    assert (w_bytes, x_bytes) == (model.link_bytes, model.x_load_bytes)
    assert sum(store.nbytes for store in counted.stores) == model.o_store_bytes
    loading = {load.cluster for load in counted.loads}
    assert len(loading) == min(model.items, config.clusters)
    most = max((sum(c.cluster == one for c in counted.loads) for one in loading), default=0)
    assert most == model.most_items * 2 * 2 * cluster  # two K steps, an X and a W tile each


def racing(config: Config) -> bool:
    sizes = np.array([70, 0, 3, 40], np.int32)
    gemm = GroupedGemm(t=120, k=192, n=128, experts=4)
    kernel = jax.jit(sm90.build(gemm, config, interpret=interpret_params(detect_races=True)))
    x, w = operands(120, 192, 128, 4)
    table, expert_blocks, blocks = block_table(sizes, 120, config.block_rows, xp=np)
    scalars = np.array([expert_blocks, blocks, config.clusters, 0], np.int32)
    reset()
    out = within(lambda: np.asarray(kernel(x, w, table, scalars)))
    assert_right(out, x, w, sizes)
    return races_found()


@pytest.mark.parametrize(
    "config", [SMALL, clustered(2), replace(TWO_WARPGROUPS, sm_count=2)], ids=["1", "2", "wide"]
)
def test_no_race(config: Config, capfd: pytest.CaptureFixture[str]) -> None:
    assert not racing(config)


def test_the_race_detector_sees_a_missing_fence(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    without = SimpleNamespace(**{**vars(sm90.plgpu), "commit_smem": lambda: None})
    monkeypatch.setattr(sm90, "plgpu", without)
    assert racing(SMALL)
    reset()


@pytest.mark.slow
@pytest.mark.parametrize("t", [16, 300, 700])
def test_configurations_in_use(t: int) -> None:
    """The tile families of `choose`, with few SMs."""
    gemm = GroupedGemm(t=t, k=640, n=256, experts=3)
    config = choose(gemm, sm_count=3)
    sizes = (t // 2, 0, t // 3)
    x, w = operands(t, 640, 256, 3)
    out = run(x, poisoned(w, sizes), np.array(sizes), config=config)
    assert_right(out, x, w, sizes)
