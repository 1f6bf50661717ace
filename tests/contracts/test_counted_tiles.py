"""Both traffic models, c2c.cost's and the kernel's, against tiles that the kernel really moves."""

from __future__ import annotations

from dataclasses import replace

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from c2c.cost import KernelTiles, Tiles, gemm_traffic
from pallas_kernels.gemm import Config, Gemm, Plan, launch_traffic, plan_launch
from pallas_kernels.gemm.schedule import counts
from pallas_kernels.hopper import epilogue
from pallas_kernels.hybrid_gemm import hybrid_gemm
from tests.pallas_kernels.interpreting import count_copies, operands, within

# tm is not tn, so that tiles of X and W differ in shape.
CONFIG = Config(
    tm=128,
    tn=64,
    x_stages=2,
    w_stages=2,
    warpgroups=2,
    sm_count=4,
    stagger=False,
)
X_TILE, W_TILE = (CONFIG.tm, CONFIG.tk), (CONFIG.tk, CONFIG.tn)


def model_of(config: Config) -> KernelTiles:
    both = {"tm": config.tm, "tn": config.tn, "tk": config.tk}
    return KernelTiles(
        cluster=config.cluster,
        sym=Tiles(**both, kc=config.tk, stages=config.w_stages),
        asym=Tiles(**both, kc=config.kc, stages=config.x_stages),
    )


@pytest.mark.parametrize(
    ("m", "k", "n", "alpha", "cluster", "stagger"),
    [
        (256, 192, 256, 0.5, 1, False),  # both paths, a shorter last K slice
        (136, 128, 192, 1.0, 1, False),  # two readings of W, the second for 8 rows
        (264, 256, 128, 0.0, 1, False),  # two K slices, three M tiles
        (264, 64, 192, 1.0, 2, False),  # multicast: two readings for three M tiles
        (136, 192, 192, 1 / 3, 2, False),
        (136, 192, 256, 0.4, 1, False),  # alpha N is 1.6 strips: two go to SymGEMM
        (136, 192, 320, 0.1, 1, False),  # exactly half a strip: one goes to SymGEMM
        (136, 256, 256, 0.3, 1, True),  # AsymGEMM's three CTAs take 3, 2 and 3 K passes
        (8, 320, 320, 0.0, 1, True),  # the first CTA has a second strip
        (264, 192, 192, 0.45, 2, True),  # its two CTAs take 2 each, of which one is short
    ],
)
def test_counted_tiles_equal_the_traffic_models(
    m: int,
    k: int,
    n: int,
    alpha: float,
    cluster: int,
    stagger: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = replace(CONFIG, cluster=cluster, stagger=stagger)
    gemm = Gemm(m=m, k=k, n=n)
    x, w, _ = operands(m, k, n)
    counted = count_copies(monkeypatch)
    within(
        lambda: jax.block_until_ready(
            hybrid_gemm(x, w, alpha, cluster=cluster, config=config, backend="interpret")
        )
    )
    plan = plan_launch(gemm, config, alpha=alpha)
    ours = launch_traffic(gemm, config, plan)
    share = share_of(plan, gemm, config)
    model = gemm_traffic(m, n, k, share, tiles=model_of(config), sm_count=4, l2_bytes=0)

    link_bytes = sum(load.nbytes for load in counted.loads if load.tile == W_TILE)
    assert link_bytes == float(model.link_bytes) == ours.link_bytes
    x_bytes = sum(load.nbytes for load in counted.loads if load.tile == X_TILE)
    assert x_bytes == ours.x_load_bytes
    assert {load.tile for load in counted.loads} == {X_TILE, W_TILE}

    pieces = {
        size: CONFIG.warpgroups * epilogue(config.warpgroup_rows, config.tn, size).pieces
        for size in (2, 4)
    }
    of_sums = [s for s in counted.stores if s.of == "float32"]
    of_o = [s for s in counted.stores if s.of == "bfloat16"]
    tiles = ours.sym_outputs + ours.asym_outputs  # each is stored, as O or as sums
    assert len(of_o) / pieces[2] + len(of_sums) / pieces[4] == tiles
    assert sum(s.nbytes for s in of_o) == ours.o_store_bytes == 2 * m * n
    # the sums of a ragged last tile have rows that O lacks
    rows = -(-m // config.tm) * config.tm
    columns = gemm.n - plan.sym_strips * config.tn
    idle = -columns // config.tn * -config.tn % (config.tn * cluster)  # of a group cut by N
    assert idle or sum(s.nbytes for s in of_sums) * m == ours.sums_store_bytes * rows
    # each CTA has sums of its own: interpreted clusters run in turn, so values would not show it
    owners = {(s.first, s.cluster) for s in of_sums}
    assert len({first for first, _ in owners}) == len(owners)
    clusters = {s.cluster for s in counted.stores if s.cluster >= plan.sym_clusters}
    assert len(owners) == (len(clusters) * cluster if of_sums else 0)
    if not stagger and not idle:  # c2c.cost has passes of equal length, and no groups
        assert ours.asym_outputs == float(model.asym_steps)


def share_of(plan: Plan, gemm: Gemm, config: Config) -> float:
    """The alpha at which c2c.cost, which splits anywhere, splits where the kernel does."""
    columns = min(plan.sym_strips * config.tn, gemm.n)
    return min(1.0, (columns + 0.5) / gemm.n)


@st.composite
def shapes(draw: st.DrawFn) -> tuple[Gemm, Config]:
    cluster = draw(st.sampled_from([1, 2, 4, 8]))
    config = Config(
        tm=draw(st.sampled_from([128, 256])),
        tn=draw(st.sampled_from([64, 128, 256])),
        w_stages=draw(st.integers(2, 8)),
        cluster=cluster,
        sm_count=draw(st.integers(2 * cluster, 132)),
        stagger=False,
    )
    # whole tiles of rows: c2c.cost multiplies 64 rows at a time, the kernel tm
    m = config.tm * draw(st.integers(1, 40))
    return Gemm(m=m, k=64 * draw(st.integers(1, 80)), n=64 * draw(st.integers(1, 200))), config


@given(shapes(), st.one_of(st.sampled_from([0.0, 0.5, 1.0]), st.floats(0, 1)))
def test_the_models_agree_where_both_speak_of_the_same(
    shape: tuple[Gemm, Config], alpha: float
) -> None:
    gemm, config = shape
    plan = plan_launch(gemm, config, alpha=alpha)
    ours = launch_traffic(gemm, config, plan)
    model = gemm_traffic(
        gemm.m,
        gemm.n,
        gemm.k,
        share_of(plan, gemm, config),
        tiles=model_of(config),
        sm_count=config.sm_count,
        l2_bytes=0,
    )
    assert ours.link_bytes == float(model.link_bytes)
    passes = -(-gemm.k // config.kc)
    if passes == 1 or plan.sym_strips == counts(config, gemm).strips:
        assert ours.o_hbm_bytes == float(model.o_bytes)  # c2c.cost adds sums of two bytes in O
    assert ours.flops == float(model.flops)
    if (counts(config, gemm).strips - plan.sym_strips) % config.cluster == 0:
        # else CTAs of the last group have no strip, which c2c.cost's AsymGEMM does not know
        assert ours.asym_outputs == float(model.asym_steps)
        assert ours.mma_flops == float(model.sym_mma_flops + model.asym_mma_flops)
    if plan.sym_strips == 0 and plan.active_clusters * config.cluster == config.sm_count:
        assert ours.x_hbm_bytes == float(model.x_bytes)


@given(shapes(), st.floats(0, 1))
def test_splitting_anywhere_differs_by_less_than_two_strips(
    shape: tuple[Gemm, Config], alpha: float
) -> None:
    gemm, config = shape
    share = share_of(plan_launch(gemm, config, alpha=alpha), gemm, config)
    link = [
        float(
            gemm_traffic(
                gemm.m, gemm.n, gemm.k, each, tiles=model_of(config), sm_count=132, l2_bytes=0
            ).link_bytes
        )
        for each in (alpha, share)
    ]
    readings = -(-gemm.m // (config.tm * config.cluster))
    strip = 2 * gemm.k * (readings - 1) * config.tn
    # half a strip by rounding, up to one as the last may be narrower, a column by floor
    assert np.abs(link[1] - link[0]) <= (1.5 + 1 / config.tn + 1e-4) * strip
