"""Measured things: the probe's reads, the order of the grid, the driver's answer, the shares."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from experiments.gpu import Context
from experiments.gpu.kernels import facts, grid, launching, operands
from experiments.gpu.kernels.adding import TILE, adder
from experiments.gpu.kernels.contention import shares
from experiments.gpu.kernels.probes import Streaming, last_items, launcher, scalars
from pallas_kernels import check_gemm
from pallas_kernels.gemm import MODEL_PROJECTIONS, ROWS
from pallas_kernels.gemm.layout import row_major
from pallas_kernels.mosaic import interpret_params
from tests.pallas_kernels.interpreting import within
from tests.tiers import tiered

TINY = Context(backend="interpret", scale="tiny")


@pytest.mark.parametrize(
    ("choices", "use"),
    [
        ({}, {"sms": 4}),
        ({}, {"sms": 3, "passes": 2}),
        ({"cluster": 2}, {"sms": 4, "passes": 2}),
        ({}, {"sms": 4, "groups": 2}),
    ],
)
def test_the_probe_reads_every_box_it_is_dealt(
    choices: dict[str, int], use: dict[str, int]
) -> None:
    reading = Streaming(k=256, n=128, columns=64, stages=2, sm_count=4, **choices)  # type: ignore[arg-type]
    w = np.random.default_rng(0).standard_normal((256, 128)).astype(jnp.bfloat16)
    run = scalars(reading, **use)
    read = launcher(reading, interpret=interpret_params())
    last = np.asarray(within(lambda: read(jnp.asarray(w), jnp.asarray(run)))[0])
    items = last_items(run)
    assert len(items) == use["sms"] // reading.cluster
    assert len(set(items.values())) == len(items)
    for cluster, item in items.items():
        top, left = item % 4 * 64, item // 4 * 64
        for rank in range(reading.cluster):
            got = last[cluster * reading.cluster + rank]
            np.testing.assert_array_equal(got, w[top : top + 64, left : left + 64])


@pytest.mark.parametrize("by_adding", [True, False])
def test_additions_are_summed_and_stores_replace(by_adding: bool) -> None:
    tile = np.random.default_rng(0).standard_normal(TILE).astype(np.float32)
    send = adder(3, 2, by_adding=by_adding, interpret=interpret_params())
    got = np.asarray(within(lambda: send(jnp.asarray(tile), jnp.array([3], jnp.int32))))
    expected = np.tile(tile * (3 if by_adding else 1), (3, 1))
    np.testing.assert_allclose(got, expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"rows": 96}, "rows=96"),
        ({"columns": 512}, "columns=512"),
        ({"stages": 64}, "shared memory"),
        ({"cluster": 3}, "cluster=3"),
    ],
)
def test_probes_that_cannot_run(wrong: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Streaming(k=512, n=1024, **wrong)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="sms=200"):
        scalars(Streaming(k=512, n=1024), sms=200)


@pytest.mark.parametrize(("w_layout", "alphas"), tiered([("kn", (0.0, 1.0)), ("tiles", (1.0,))]))
def test_the_measured_launch_is_the_kernel(w_layout: Any, alphas: tuple[float, ...]) -> None:
    x = operands.activations(8, 128, TINY)
    w = operands.weights(128, 128, 2, "host", 0, w_layout=w_layout)
    for alpha in alphas:
        launch = launching.hybrid(x, w, TINY, alpha=alpha, w_layout=w_layout)
        for number in range(3):
            out = within(lambda: np.asarray(launch(number)))  # noqa: B023
            layer = np.asarray(w.data)[number % 2]  # type: ignore[union-attr]
            layer = row_major(layer).T if w_layout == "tiles" else layer
            assert check_gemm(out, np.asarray(x), layer).worst_ratio <= 1


def test_the_grid_begins_with_what_tells_most_and_leaves_out_nothing_else() -> None:
    specs = [c.spec for c in grid.cases("full") if c.spec["what"] == "hybrid"]
    assert specs[0]["shape"] == "c2cserve-fig4"
    assert specs[0]["m"] == 10240
    assert [c.spec["what"] for c in grid.cases("full")[:3]] == ["bound"] * 3
    early = {(s["m"], s["sm_limit"]) for s in specs[:300]}
    assert {(10240, 132), (16, 132), (10240, 16)} <= early
    shapes = {shape for model in (grid.FIG4, grid.DENSE) for shape in MODEL_PROJECTIONS[model]}
    seen = {(s["k"], s["n"], s["m"], s["sm_limit"], s["alpha"]) for s in specs}
    for k, n in shapes:
        for m in ROWS:
            for sms in grid.SM_LIMITS:
                assert {(k, n, m, sms, alpha) for alpha in grid.ALPHAS} <= seen
    assert all(s["cluster"] == 1 for s in specs if s["m"] <= 256)
    assert [grid.useful_clusters(m) for m in (64, 512, 10240)] == [(1,), (2, 1), (8, 4, 2, 1)]


def test_timers_that_wrap() -> None:
    near_end = 2**31 - 50
    raw = np.array([[near_end, near_end + 40], [near_end + 30 - 2**32 + 2**32, near_end + 90]])
    wrapped = ((raw + 2**31) % 2**32 - 2**31).astype(np.int32)
    assert (wrapped < 0).any()
    begun, ended = facts.since_first(wrapped)
    assert begun.tolist() == [0, 30]
    assert ended.tolist() == [40, 90]


def test_shares_count_only_the_time_in_common() -> None:
    fast, slow = [0.0, 1.0, 2.0, 3.0, 4.0], [1.0, 3.0, 5.0]
    rates = shares([fast, slow], 10**9)
    assert rates == pytest.approx([1.0, 0.5])  # from 1 to 4
    with pytest.raises(RuntimeError, match="never read at the same time"):
        shares([[0.0, 1.0], [2.0, 3.0]], 1)
