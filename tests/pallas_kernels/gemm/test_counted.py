"""Tiles that the kernel really moves, of every op and dataflow, against the count of traffic."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from pallas_kernels.gemm import Quantised, launch_traffic, plan_launch
from pallas_kernels.gemm.config import rings
from tests.pallas_kernels.gemm.cases import CONVERTING, OUTPUT_ONLY, Case, clustered
from tests.pallas_kernels.gemm.suite import GGUF, INT4
from tests.pallas_kernels.interpreting import SMALL, count_copies
from tests.tiers import tiered

COUNTED = {
    "both paths, a short last slice": Case(m=256, k=192, n=256, alphas=(0.5,)),
    "both paths, a cluster of 2, two readings": Case(
        m=264, k=192, n=192, config=clustered(SMALL, 2), alphas=(0.45, 1.0)
    ),
    "passes of unlike length": Case(
        m=136, k=256, n=256, config=replace(SMALL, stagger=True), alphas=(0.0, 0.3)
    ),
    "tiles of K converted": Case(
        m=136, k=384, n=128, weights=INT4, config=CONVERTING, alphas=(0.5,)
    ),
    "offsets, cluster of 2": Case(
        m=130, k=384, n=128, weights=GGUF, config=clustered(CONVERTING, 2), alphas=(0.5,)
    ),
    "per channel, offsets": Case(
        m=130, k=640, n=64, weights=Quantised(offset_dtype="float32"), config=CONVERTING,
        alphas=(0.0, 1.0),
    ),
    "groups of 64, cluster of 8": Case(
        m=70, k=512, n=64, weights=Quantised(group=64),
        config=clustered(replace(OUTPUT_ONLY, tm=8, tk=64), 8),
    ),
    "experts": Case(m=160, k=192, n=128, sizes=(5, 0, 150, 1), alphas=(0.5,)),
    "experts, one row more: a second reading": Case(
        m=257, k=64, n=64, sizes=(130, 127), alphas=(1.0,)
    ),
    "experts, cluster of 2": Case(
        m=270, k=128, n=128, sizes=(3, 250, 0, 8), config=clustered(SMALL, 2), alphas=(0.4,)
    ),
    "experts, none with rows": Case(m=20, k=64, n=64, sizes=(0, 0), alphas=(0.0,)),
    "experts, quantised, offsets": Case(
        m=40, k=384, n=128, sizes=(11, 0, 20), weights=GGUF, config=CONVERTING, alphas=(0.5,)
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    "case",
    tiered(
        COUNTED.values(),
        COUNTED["both paths, a short last slice"],
        COUNTED["experts, cluster of 2"],
        COUNTED["experts, quantised, offsets"],
    ),
    ids=COUNTED.keys(),
)
def test_counted_copies_are_the_traffic(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    # tm is not tn or tk, so that tiles of X and W differ in shape
    config = case.config
    warpgroups = 2 if case.weights is None else 1
    is_staggered = case == COUNTED["passes of unlike length"]
    config = replace(config, tm=128, warpgroups=warpgroups, stagger=is_staggered)
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

        of_w = [load for load in copies.loads if load.tile == w_tile]
        of_x = [load for load in copies.loads if load.tile == x_tile]
        others = [load for load in copies.loads if load.tile not in (w_tile, x_tile)]
        assert sum(load.nbytes for load in of_w) == model.w_bytes
        assert sum(load.nbytes for load in of_x) == model.x_load_bytes
        sums = {(rings(config, gemm).sum_rows, config.tm)}
        of_sums = [o for o in others if case.weights and o.tile in sums and o.of == "float32"]
        of_sums = of_sums if case.weights and case.weights.offset_dtype else []
        assert sum(load.nbytes for load in of_sums) == model.x_sum_bytes
        rest = [load for load in others if load not in of_sums]
        assert sum(load.nbytes for load in rest) == model.scale_bytes
        of_o = [s for s in copies.stores if s.of == case.out]
        assert sum(s.nbytes for s in of_o) == model.o_store_bytes
        of_partial = [s for s in copies.stores if s.of == "float32" and s not in of_o]
        assert bool(of_partial) == (model.sums_store_bytes > 0)
        # each CTA has sums of its own: interpreted clusters run in turn, values would not show it
        owners = {(s.first, s.cluster) for s in of_partial}
        assert len({first for first, _ in owners}) == len(owners)
