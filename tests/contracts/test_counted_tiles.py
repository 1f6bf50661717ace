"""Both traffic models, c2c.cost's and the kernel's, which `test_counted.py` holds to real tiles."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from c2c.cost import KernelTiles, Tiles, gemm_traffic
from pallas_kernels.gemm import Config, Gemm, Plan, launch_traffic, plan_launch
from pallas_kernels.gemm.schedule import counts


def model_of(config: Config) -> KernelTiles:
    both = {"tm": config.tm, "tn": config.tn, "tk": config.tk}
    return KernelTiles(
        cluster=config.cluster,
        sym=Tiles(**both, kc=config.tk, stages=config.w_stages),
        asym=Tiles(**both, kc=config.kc, stages=config.x_stages),
    )


def share_of(plan: Plan, gemm: Gemm, config: Config) -> float:
    """The alpha at which c2c.cost, which splits anywhere, splits where the kernel does."""
    columns = min(plan.sym_strips * config.tn, gemm.n)
    return min(1.0, (columns + 0.5) / gemm.n)


@st.composite
def shapes(draw: st.DrawFn) -> tuple[Gemm, Config]:
    cluster = draw(st.sampled_from([1, 2, 4, 8]))
    config = Config(
        tm=draw(st.sampled_from([128, 256])), tn=draw(st.sampled_from([64, 128, 256])),
        w_stages=draw(st.integers(2, 8)), cluster=cluster,
        sm_count=draw(st.integers(2 * cluster, 132)), stagger=False,
    )  # fmt: skip
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
        gemm.m, gemm.n, gemm.k, share_of(plan, gemm, config), tiles=model_of(config),
        sm_count=config.sm_count, l2_bytes=0,
    )  # fmt: skip
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
