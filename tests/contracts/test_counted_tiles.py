"""The traffic model of c2c.cost against the tiles that the kernel itself loads and stores."""

from __future__ import annotations

from dataclasses import replace

import jax
import pytest

from c2c.cost import KernelTiles, Tiles, gemm_traffic
from pallas_kernels.hybrid_gemm import Config, Gemm, hybrid_gemm, plan_launch
from pallas_kernels.hybrid_gemm.config import epilogue
from tests.pallas_kernels.interpreting import count_copies, operands, within

# tm is not tn, so that tiles of X and W differ in shape.
CONFIG = Config(
    tm=128, tn=64, kc=128, sym_stages=2, asym_stages=2, warpgroups=2, sm_count=4, stagger=False
)
X_TILE, W_TILE = (CONFIG.tm, CONFIG.tk), (CONFIG.tk, CONFIG.tn)


def model_of(config: Config) -> KernelTiles:
    both = {"tm": config.tm, "tn": config.tn, "tk": config.tk}
    return KernelTiles(
        cluster=config.cluster,
        sym=Tiles(**both, kc=config.tk, stages=config.sym_stages),
        asym=Tiles(**both, kc=config.kc, stages=config.asym_stages),
    )


@pytest.mark.parametrize(
    ("m", "k", "n", "alpha", "cluster"),
    [
        (256, 192, 256, 0.5, 1),  # both paths, a shorter last K slice
        (136, 128, 192, 1.0, 1),  # two readings of W, the second for 8 rows
        (264, 256, 128, 0.0, 1),  # two K slices, three M tiles
        (264, 64, 192, 1.0, 2),  # multicast: two readings for three M tiles
        (136, 192, 192, 1 / 3, 2),
    ],
)
def test_counted_tiles_equal_the_traffic_model(
    m: int,
    k: int,
    n: int,
    alpha: float,
    cluster: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = replace(CONFIG, cluster=cluster)
    gemm = Gemm(m=m, k=k, n=n)
    x, w, _ = operands(m, k, n)
    counted = count_copies(monkeypatch)
    within(
        lambda: jax.block_until_ready(
            hybrid_gemm(x, w, alpha, cluster=cluster, config=config, backend="interpret")
        )
    )
    plan = plan_launch(gemm, config, alpha=alpha)
    tiles = model_of(config)
    model = gemm_traffic(m, n, k, alpha, tiles=tiles, sm_count=4, l2_bytes=0)

    # The GPU loads a multicast tile once for the cluster, interpret mode once for each CTA.
    shares = {True: cluster, False: 1}
    link_bytes = sum(
        load.nbytes / shares[load.cluster < plan.sym_clusters]
        for load in counted.loads
        if load.tile == W_TILE
    )
    assert link_bytes == float(model.link_bytes)

    pieces = CONFIG.warpgroups * epilogue(config, gemm).pieces
    asym_stores = [s for s in counted.stores if s.cluster >= plan.sym_clusters]
    assert len(asym_stores) == pieces * float(model.asym_steps)
    stored = sum(s.nbytes for s in asym_stores)
    assert stored == float(model.reduction_bytes)

    sym_stored = sum(s.nbytes for s in counted.stores if s.cluster < plan.sym_clusters)
    assert sym_stored == 2 * m * plan.sym_strips * CONFIG.tn
    assert {load.tile for load in counted.loads} == {X_TILE, W_TILE}
