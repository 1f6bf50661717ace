"""Every output tile is computed exactly once and every K step enters once, whatever the plan."""

from __future__ import annotations

import collections
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from pallas_kernels.gemm import (
    CLUSTERS,
    Config,
    Gemm,
    Quantised,
    plan_launch,
    sharing,
    smallest_cluster,
    sums_shape,
)
from pallas_kernels.gemm.config import ROW_TILES, SUM_BYTES, o_epilogue, sums_apart, sums_epilogue
from pallas_kernels.gemm.rows import OneMatrix, Place
from pallas_kernels.gemm.schedule import Plan, counts, first_pass, passes


@st.composite
def launches(draw: st.DrawFn) -> tuple[Gemm, Config, Plan, float]:
    cluster = draw(st.sampled_from(CLUSTERS))
    config = Config(
        tm=draw(st.sampled_from([128, 256])), tn=draw(st.sampled_from([64, 128])),
        w_stages=draw(st.integers(2, 8)), cluster=cluster, sm_count=draw(st.integers(cluster, 40)),
        stagger=draw(st.booleans()),
    )  # fmt: skip
    gemm = Gemm(
        m=8 * draw(st.integers(1, 200)),
        k=64 * draw(st.integers(1, 30)),
        n=64 * draw(st.integers(1, 60)),
    )
    alpha = draw(st.one_of(st.sampled_from([0.0, 0.5, 1.0]), st.floats(0, 1)))
    limit = draw(st.integers(cluster, config.sm_count))
    splits = st.integers(0, limit // cluster).map(lambda clusters: cluster * clusters)
    split = draw(st.one_of(st.none(), splits))
    try:
        plan = plan_launch(gemm, config, alpha=alpha, sm_split=split, sm_limit=limit)
    except ValueError as error:
        assume("leaves" not in str(error))
        raise
    return gemm, config, plan, alpha


@given(launches())
def test_every_tile_is_computed_exactly_once(launch: tuple[Gemm, Config, Plan, float]) -> None:
    gemm, config, plan, _ = launch
    sizes = counts(config, gemm)
    done: collections.Counter[tuple[int, int]] = collections.Counter()
    for cluster in range(plan.active_clusters):
        for rank in range(config.cluster):
            at = Place(config=config, sizes=sizes, plan=plan, cluster=cluster, rank=rank)
            rows = OneMatrix(at=at)
            for number in range(int(rows.items())):
                item = rows.item(number)
                tops = (rows.tile_top(item, tile) for tile in range(item.row_tiles))
                done.update((top // config.tm, item.strip) for top in tops)
    # A cluster wider than what is left has CTAs whose tiles lie beyond O: loaded as zero, clipped.
    wanted = {(row, strip) for row in range(sizes.row_tiles) for strip in range(sizes.strips)}
    assert {t for t in done if t[0] < sizes.row_tiles and t[1] < sizes.strips} == wanted
    assert set(done.values()) == {1}


@given(
    k_steps=st.integers(1, 200), ring=st.integers(2, 16), cta=st.integers(0, 131),
    stagger=st.booleans(), unit=st.sampled_from([1, 2, 3]),
)  # fmt: skip
def test_passes_cover_k_once_within_the_ring(
    k_steps: int, ring: int, cta: int, stagger: bool, unit: int
) -> None:
    ring, k_steps = ring * unit, k_steps * unit
    config = Config(w_stages=ring, stagger=stagger)
    first = first_pass(config, k_steps, cta, unit)
    assert first % unit == 0  # whole groups of scales
    number = passes(config, k_steps, first)
    ends = [min(first + p * ring, k_steps) for p in range(number)]
    lengths = np.diff([0, *ends])
    assert ends[-1] == k_steps
    assert lengths.min() >= 1
    assert lengths.max() <= ring
    assert number <= -(-k_steps // ring) + stagger
    if k_steps <= ring:
        assert number == 1


@given(launches(), st.sampled_from(["bfloat16", "float32"]))
def test_sums_have_room_for_every_strip_at_work(
    launch: tuple[Gemm, Config, Plan, float], out_dtype: str
) -> None:
    gemm, config, plan, _ = launch
    shape = sums_shape(config, replace(gemm, out_dtype=out_dtype))
    sizes = counts(config, gemm)
    if out_dtype == "float32" or gemm.k <= config.kc:
        assert shape is None
        return
    assert shape is not None
    ctas, rows, columns = shape
    groups = -(-(sizes.strips - plan.sym_strips) // config.cluster)
    working = min(groups, plan.active_clusters - plan.sym_clusters)  # clusters with a strip
    assert working * config.cluster <= ctas <= config.sm_count
    assert (rows, columns) == (sizes.row_tiles * config.tm, config.tn)


@pytest.mark.parametrize("out_dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("tm", [tm for tm in ROW_TILES if tm >= 64])
@pytest.mark.parametrize("kind", [None, "int8", "int4"])
def test_a_slot_has_as_many_bytes_for_sums_as_for_o(
    kind: str | None, tm: int, out_dtype: str
) -> None:
    """A store of sums is still under way when the next slot takes O."""
    quantised = None if kind is None else Quantised(kind=kind)
    gemm = Gemm(
        m=512, k=4096, n=4096, quantised=quantised, w_layout="nk", out_dtype=out_dtype,
        experts=8 if quantised is None else None,
    )  # fmt: skip
    config = Config(tm=tm, tk=64 if quantised is None else 128)
    sums, o = sums_epilogue(config, gemm), o_epilogue(config, gemm)
    assert sums_apart(config, gemm)
    assert sums.rows * sums.columns * SUM_BYTES == o.rows * o.columns * gemm.out_itemsize
    assert sums.slots == o.slots
    assert (sums.pieces % sums.slots, o.pieces % o.slots) == (0, 0)


@given(launches())
def test_columns_follow_alpha_and_the_split_is_balanced(
    launch: tuple[Gemm, Config, Plan, float],
) -> None:
    gemm, config, plan, alpha = launch
    sizes = counts(config, gemm)
    assert abs(plan.sym_strips - alpha * sizes.strips) <= 0.5 + 1e-5 * sizes.strips
    assert 0 <= plan.sym_clusters <= plan.active_clusters <= config.clusters
    if plan.active_clusters == 1:
        return  # nothing to choose
    active, sym = plan.active_clusters, plan.sym_strips
    best = int(sharing.balanced_clusters(config, sizes, sym, active))

    def steps(clusters: int) -> int:
        free = plan.active_clusters - clusters
        return int(sharing.busiest_steps(sizes, config.cluster, plan.sym_strips, clusters, free))

    assert steps(best) <= steps(plan.sym_clusters)


@given(launches(), st.booleans())
def test_traced_plan_equals_the_concrete_one(
    launch: tuple[Gemm, Config, Plan, float], default_split: bool
) -> None:
    gemm, config, plan, alpha = launch
    limit = plan.active_clusters * config.cluster
    split = None if default_split else plan.sym_clusters * config.cluster
    if default_split:
        plan = plan_launch(gemm, config, alpha=alpha, sm_limit=limit)
    traced = sharing.traced_plan(
        config, counts(config, gemm), alpha=alpha, sm_split=split, sm_limit=limit, layer=0, xp=np
    )
    assert int(traced.sym_clusters) == plan.sym_clusters
    assert int(traced.sym_strips) == plan.sym_strips
    assert int(traced.active_clusters) == plan.active_clusters


@given(
    alpha=st.floats(allow_nan=False, width=32), split=st.one_of(st.none(), st.integers(-5, 50)),
    limit=st.integers(-5, 50), cluster=st.sampled_from(CLUSTERS), n=st.integers(1, 30),
)  # fmt: skip
def test_traced_values_are_clamped_to_a_launchable_plan(
    alpha: float, split: int | None, limit: int, cluster: int, n: int
) -> None:
    config = Config(cluster=cluster, sm_count=24)
    sizes = counts(config, Gemm(m=512, k=64, n=64 * n))
    plan = sharing.traced_plan(
        config, sizes, alpha=alpha, sm_split=split, sm_limit=limit, layer=0, xp=np
    )
    assert 1 <= plan.active_clusters <= config.clusters
    assert 0 <= plan.sym_clusters <= plan.active_clusters
    assert 0 <= plan.sym_strips <= sizes.strips
    assert plan.sym_strips == 0 or plan.sym_clusters > 0
    assert plan.sym_strips == sizes.strips or plan.sym_clusters < plan.active_clusters


@pytest.mark.parametrize(("m", "cluster"), [(1, 1), (256, 1), (257, 2), (1024, 4), (10240, 8)])
def test_smallest_cluster_reads_w_once_if_one_can(m: int, cluster: int) -> None:
    assert smallest_cluster(m, 256) == cluster
