"""Laws of the counted traffic, the predicted times and the choice that follows from them."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from c2c.transformer import Hybrid
from pallas_kernels.gemm import (
    CLUSTERS,
    FAMILY,
    MACHINES,
    Config,
    Gemm,
    Machine,
    Plan,
    api,
    best_alpha,
    check_fits,
    choice,
    choose,
    explain,
    launch_traffic,
    machine_for,
    plan_launch,
    plans,
    predict,
    present_machine,
)
from pallas_kernels.gemm import prediction as model
from pallas_kernels.gemm.schedule import counts
from pallas_kernels.hybrid_gemm import PackedWeights, hybrid_gemm, pack_weights
from pallas_kernels.numerics import check_gemm

GH200, H200 = MACHINES["NVIDIA GH200 480GB"], MACHINES["NVIDIA H200"]
ALPHAS = np.linspace(0, 1, 9)


@pytest.fixture(autouse=True)
def no_results(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The model alone decides, whatever was tuned on this machine."""
    monkeypatch.setattr("pallas_kernels.tuned_results.folders", lambda: (tmp_path,))


@st.composite
def gemms(draw: st.DrawFn) -> Gemm:
    return Gemm(
        m=8 * draw(st.one_of(st.integers(1, 40), st.integers(1, 4000))),
        k=64 * draw(st.integers(1, 450)),
        n=64 * draw(st.integers(1, 900)),
        out_dtype=draw(st.sampled_from(["bfloat16", "float32"])),
    )


@st.composite
def configs(draw: st.DrawFn) -> Config:
    cluster = draw(st.sampled_from(CLUSTERS))
    return replace(
        draw(st.sampled_from(list(FAMILY.values()))),
        cluster=cluster,
        sm_count=draw(st.integers(2 * cluster, 132)),
        stagger=draw(st.booleans()),
    )


RATE = st.floats(1, 1e4)
# Fields instead of machines: checking the type of a tuple draws random numbers.
MACHINE_FIELDS = st.fixed_dictionaries(
    {
        "device": st.just("test"), "sm_count": st.integers(8, 160), "link_gbps": RATE,
        "hbm_gbps": RATE, "bf16_tflops": st.floats(1, 2000), "l2_gbps": RATE,
        "l2_bytes": st.floats(1, 1e8), "link_latency_s": st.floats(1e-7, 1e-5),
    }
)  # fmt: skip


def counted(gemm: Gemm, config: Config, alpha: float) -> dict[str, int]:
    """AsymGEMM's and SymGEMM's counts, one CTA and one strip after the other."""
    plan = plan_launch(gemm, config, alpha=alpha)
    sizes = counts(config, gemm)
    ring = config.kc // config.tk
    others = plan.active_clusters - plan.sym_clusters
    result = dict.fromkeys(("link", "x", "stored", "added", "read back", "outputs"), 0)
    for strip in range(sizes.strips):
        width = min(config.tn, gemm.n - strip * config.tn)
        o_bytes = gemm.m * width * gemm.out_itemsize
        result["stored"] += o_bytes
        if strip < plan.sym_strips:
            result["x"] += gemm.m * gemm.k * gemm.in_itemsize
            result["link"] += sizes.row_clusters * gemm.k * width * gemm.in_itemsize
            result["outputs"] += sizes.row_clusters * config.cluster
            continue
        result["link"] += gemm.k * width * gemm.in_itemsize
        group, rank = divmod(strip - plan.sym_strips, config.cluster)
        first = group % others % ring + 1 if config.stagger else ring
        ends = [sizes.k_steps] if sizes.k_steps <= ring else [min(first, sizes.k_steps)]
        while ends[-1] < sizes.k_steps:
            ends.append(min(ends[-1] + ring, sizes.k_steps))
        result["added"] += (len(ends) - 1) * gemm.m * width * 4  # float32, wherever they are
        if len(ends) > 1 and gemm.out_dtype != "float32":
            result["read back"] += gemm.m * width * 4
        if rank == 0:  # each CTA of the cluster has an output, and together they read X once
            result["outputs"] += len(ends) * sizes.row_tiles * config.cluster
            result["x"] += gemm.m * gemm.k * gemm.in_itemsize
    return result


@given(gemms(), configs(), st.floats(0, 1))
def test_traffic_equals_a_walk_over_all_strips(gemm: Gemm, config: Config, alpha: float) -> None:
    moved = launch_traffic(gemm, config, plan_launch(gemm, config, alpha=alpha))
    assert counted(gemm, config, alpha) == {
        "link": moved.link_bytes, "x": moved.x_load_bytes, "stored": moved.o_store_bytes,
        "added": moved.sums_store_bytes, "read back": moved.sums_load_bytes,
        "outputs": moved.sym_outputs + moved.asym_outputs,
    }  # fmt: skip


@st.composite
def small(draw: st.DrawFn) -> tuple[Gemm, Config, int]:
    cluster = draw(st.sampled_from([1, 2, 4]))
    clusters = draw(st.integers(1, 9))
    config = Config(tm=128, tn=64, cluster=cluster, sm_count=cluster * clusters)
    gemm = Gemm(m=8 * draw(st.integers(1, 200)), k=64, n=64 * draw(st.integers(1, 12)))
    return gemm, config, clusters


@given(small())
def test_x_of_symgemm_equals_a_walk_over_its_waves(case: tuple[Gemm, Config, int]) -> None:
    gemm, config, clusters = case
    sizes = counts(config, gemm)
    items = sizes.strips * sizes.row_clusters
    tall = config.tm * config.cluster
    rows = 0
    for start in range(0, items, clusters):
        wave = range(start, min(start + clusters, items))
        for row_cluster in {item % sizes.row_clusters for item in wave}:
            rows += min(tall, gemm.m - row_cluster * tall)
    plan = Plan(sym_strips=sizes.strips, sym_clusters=clusters, active_clusters=clusters, layer=0)
    assert launch_traffic(gemm, config, plan).x_hbm_bytes == 2 * gemm.k * rows


@given(gemms(), configs())
def test_alpha_trades_the_link_for_additions(gemm: Gemm, config: Config) -> None:
    alphas = np.arange(counts(config, gemm).strips + 1) / counts(config, gemm).strips
    moved = launch_traffic(gemm, config, plans(gemm, config, alphas))
    assert (np.diff(moved.link_bytes) >= 0).all()
    if config.cluster == 1:
        assert (moved.x_load_bytes == moved.x_load_bytes[0]).all()
    assert (np.diff(moved.x_load_bytes) >= 0).all()
    assert (moved.o_store_bytes == moved.o_store_bytes[0]).all()
    w = gemm.in_itemsize * gemm.k * gemm.n
    assert moved.link_bytes[0] == w
    assert moved.link_bytes[-1] == w * counts(config, gemm).row_clusters
    assert moved.sums_store_bytes[-1] == moved.asym_outputs[-1] == moved.sym_outputs[0] == 0
    if not config.stagger:
        assert (np.diff(moved.sums_store_bytes) <= 0).all()
    elif gemm.k <= config.kc:
        assert not moved.sums_store_bytes.any()


@given(gemms(), configs(), MACHINE_FIELDS)
def test_time_is_the_slowest_bound_and_the_launch(
    gemm: Gemm, config: Config, fields: dict[str, Any]
) -> None:
    machine = Machine(**fields)
    found = predict(gemm, config, plans(gemm, config, ALPHAS), machine)
    times = np.stack([found.link_s, found.hbm_s, found.l2_s, found.issue_s])
    assert (found.time_s == times.max(0) + machine.launch_s).all()
    assert (found.tensor_s <= found.issue_s).all()
    moved = found.traffic
    assert (moved.flops <= moved.mma_flops).all()
    rounding = 1 - 1e-9
    assert (found.time_s >= rounding * moved.link_bytes / (machine.link_gbps * 1e9)).all()
    assert (found.time_s >= rounding * moved.hbm_bytes / (machine.hbm_gbps * 1e9)).all()
    if config.sm_count <= machine.sm_count:
        assert (found.time_s >= rounding * moved.flops / (machine.bf16_tflops * 1e12)).all()
    for i, name in enumerate(np.atleast_1d(found.bound)):
        slowest = {"tensor": "issue"}.get(name, name)
        assert getattr(found, f"{slowest}_s")[i] == times[:, i].max()
    alone = predict(gemm, config, plan_launch(gemm, config, alpha=1.0), machine)
    assert float(alone.time_s) == found.time_s[-1]
    assert alone.bound == found.bound[-1]


@settings(max_examples=10)
@given(gemms(), MACHINE_FIELDS, st.sampled_from([None, *CLUSTERS]))
def test_a_choice_always_fits_and_is_the_best(
    gemm: Gemm, fields: dict[str, Any], cluster: int | None
) -> None:
    machine = Machine(**fields)
    found = choice(gemm, machine, cluster=cluster)
    check_fits(found.config, gemm)
    assert cluster in (None, found.config.cluster)
    assert found.config.sm_count <= machine.sm_count
    assert 0 <= found.alpha <= 1
    allowed = CLUSTERS if cluster is None else (cluster,)
    for size in allowed:
        if size > machine.sm_count:
            continue
        for tiles in FAMILY.values():
            config = replace(tiles, cluster=size, sm_count=machine.sm_count)
            other = predict(gemm, config, plans(gemm, config, (0.0, 0.5, 1.0)), machine)
            assert found.time_s <= (1 + model.MARGIN) ** 2 * other.time_s.min()


@given(gemms(), configs(), MACHINE_FIELDS)
def test_the_best_alpha_beats_both_pure_dataflows(
    gemm: Gemm, config: Config, fields: dict[str, Any]
) -> None:
    machine = Machine(**fields)
    alpha = best_alpha(gemm, config, machine)
    times = predict(gemm, config, plans(gemm, config, [alpha, 0.0, 1.0]), machine).time_s
    assert times[0] <= (1 + model.MARGIN) * times[1:].min()


def test_no_traffic_is_spent_for_nothing() -> None:
    # 256 rows: W crosses once either way, and only AsymGEMM adds to O
    assert best_alpha(Gemm(m=256, k=4096, n=16384), Config(), H200) == 1.0
    # 10240 rows over PCIe: a second reading of W costs more than all additions
    assert best_alpha(Gemm(m=10240, k=4096, n=16384), Config(), H200) < 0.05
    # 16 SMs are slower than five readings of W, so that additions are what costs
    gemm, config = Gemm(m=10240, k=4096, n=16384), Config(cluster=8, x_stages=2, w_stages=8)
    assert best_alpha(gemm, config, H200) < 0.2
    assert best_alpha(gemm, config, H200, sm_limit=16) == 1.0


@given(gemms(), st.sampled_from(CLUSTERS), st.booleans())
def test_one_cluster_alone_is_given_one_path(gemm: Gemm, cluster: int, limited: bool) -> None:
    sms = {"sm_count": 16} if limited else {"sm_count": cluster}
    config = Config(tm=64, tn=64, w_stages=2, warpgroups=1, cluster=cluster, **sms)
    limit = cluster if limited else None
    alpha = best_alpha(gemm, config, H200, sm_limit=limit)
    plan = plan_launch(gemm, config, alpha=alpha, sm_limit=limit)  # refuses a starved path
    assert plan.sym_strips in (0, counts(config, gemm).strips)


@given(small(), st.sampled_from([0, 10**9]))
def test_a_starved_path_is_refused(case: tuple[Gemm, Config, int], l2_bytes: int) -> None:
    gemm, config, clusters = case
    plan = Plan(sym_strips=0, sym_clusters=clusters, active_clusters=clusters, layer=0)
    with pytest.raises(ValueError, match="expected a cluster for each path"):
        launch_traffic(gemm, config, plan, l2_bytes=float(l2_bytes))


def test_sm_count_is_that_of_the_launch() -> None:
    gemm = Gemm(m=2048, k=4096, n=16384)
    assert choose(gemm, sm_count=132) == choose(gemm, H200)
    assert [choose(gemm, sm_count=n).sm_count for n in (1, 7, 16)] == [1, 7, 16]


def test_explain_names_sizes_tiles_rates_and_reason() -> None:
    text = explain(Gemm(m=512, k=4096, n=16384), GH200)
    for part in ("O[512, 16384]", "cluster 2", "predicted", "link", "unmeasured"):
        assert part in text


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"cluster": 3}, "cluster=3: expected 1, 2, 4, 8"),
        ({"cluster": 8, "sm_count": 4}, "cluster=8: expected at most sm_count=4"),
        ({"alpha": 1.5}, r"alpha=1.5: expected a number in \[0, 1\]"),
        ({"alpha": float("nan")}, "alpha=nan"),
        ({"sm_count": 0}, "sm_count=0: expected a number above 0"),
    ],
)
def test_a_wrong_choice_is_named(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        choice(Gemm(m=8, k=64, n=64), H200, **change)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"link_gbps": 0.0}, "link_gbps=0.0: expected a number above 0"),
        ({"launch_s": -1.0}, "launch_s=-1.0: expected a number from 0 up"),
    ],
)
def test_a_wrong_machine_is_named(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        replace(H200, **change)


def test_machines() -> None:
    assert present_machine() == machine_for() == H200  # no GPU here
    assert machine_for("NVIDIA H200 NVL", sm_count=132).hbm_gbps == H200.hbm_gbps
    assert "taken to be like" in machine_for("NVIDIA B200").source
    part = machine_for("NVIDIA H200 MIG 1g.18gb", sm_count=16)
    assert part.hbm_gbps == pytest.approx(H200.hbm_gbps * 16 / 132)
    assert part.bf16_tflops == pytest.approx(H200.bf16_tflops * 16 / 132)
    assert all("unmeasured" in machine.source for machine in MACHINES.values())


@pytest.mark.parametrize("m", [8, 512, 2048])
def test_each_call_is_launched_as_its_rows_want(m: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A strategy that fixes nothing, one whose alpha is NaN at run time, one with a number."""
    monkeypatch.setattr(api, "launch", lambda x, w, scalars, *_, **__: jax.numpy.asarray(scalars))
    w = PackedWeights(data=jax.numpy.zeros((4096, 512), "bfloat16"), k=512, n=4096, w_layout="nk")
    x = jax.numpy.zeros((m, 512), "bfloat16")

    @jax.jit
    def launched(linear: Hybrid) -> jax.Array:
        return linear({"qkv": w}, "qkv", None, x, out_dtype=None)

    gemm = Gemm(m=m, k=512, n=4096, w_layout="nk")
    found = choice(gemm, machine_for(sm_count=132))
    wanted = plan_launch(gemm, found.config, alpha=found.alpha)
    for linear in (Hybrid(backend="reference"), Hybrid(backend="reference").with_alpha()):
        sym, clusters, active, _ = (int(v) for v in launched(linear))
        assert (sym, clusters, active) == (
            wanted.sym_strips,
            wanted.sym_clusters,
            132 // found.config.cluster,
        )
    fixed = launched(Hybrid(backend="reference").with_alpha(qkv=0.25))
    assert int(fixed[0]) == plan_launch(gemm, found.config, alpha=0.25).sym_strips
    assert launch_traffic(gemm, found.config, wanted).link_bytes == 2 * 512 * 4096  # W once


def test_alpha_and_cluster_may_be_left_open() -> None:
    rng = np.random.default_rng(0)
    x = jax.numpy.asarray(rng.standard_normal((300, 200)), "bfloat16")
    w = pack_weights(rng.standard_normal((200, 320)).astype(jax.numpy.bfloat16))
    plain = np.asarray(w.data)[:200, :320]

    def within_bound(out: jax.Array) -> bool:
        return check_gemm(np.asarray(out), np.asarray(x), plain).ok

    for options in ({}, {"cluster": None}, {"sm_limit": 16}, {"config": Config()}):
        out = hybrid_gemm(x, w, None, backend="reference", **options)
        assert within_bound(out)
    with pytest.raises(ValueError, match="alpha=None: expected a number, since sm_split=4"):
        hybrid_gemm(x, w, None, sm_split=4, backend="reference")
    traced = jax.jit(lambda limit: hybrid_gemm(x, w, None, sm_limit=limit, backend="reference"))
    assert within_bound(traced(8))
