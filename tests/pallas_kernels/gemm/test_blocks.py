"""Shares of work, as arithmetic: blocks, items, traffic, configurations."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pallas_kernels.gemm import (
    MODEL_EXPERTS,
    Config,
    Gemm,
    Plan,
    Quantised,
    check_fits,
    choice,
    choose,
    counts,
    launch_traffic,
    plan_launch,
    scales_weights,
    shared_bytes,
    smallest_cluster,
    tables_of,
)
from pallas_kernels.gemm.config import pass_unit
from pallas_kernels.gemm.programs import programs
from pallas_kernels.gemm.rows import OfExperts, Place
from pallas_kernels.gemm.schedule import FIELDS, Block, block_table, capacity
from pallas_kernels.gemm.specs import KINDS
from pallas_kernels.hopper import SHARED_BYTES_LIMIT
from pallas_kernels.integer_math import round_up


@st.composite
def groups(draw: st.DrawFn) -> tuple[int, list[int]]:
    """Rows and group sizes of every kind, out of range too."""
    t = draw(st.integers(1, 400))
    size = st.one_of(st.just(0), st.integers(0, 20), st.integers(-3, 2 * t))
    return t, draw(st.lists(size, min_size=1, max_size=20))


def rows_of(t: int, sizes: list[int]) -> list[tuple[int, int]]:
    """The table's right contents, counted by hand: (begin, end) of each expert."""
    found, begin = [], 0
    for size in sizes:
        end = min(begin + max(size, 0), t)
        found.append((begin, end))
        begin = end
    return [*found, (begin, t)]


@pytest.mark.parametrize(
    ("t", "sizes", "block_rows", "multiple"),
    [
        (1, [1], 64, 8),
        (400, [0, 130, -3, 7, 800, 5], 128, 8),  # below zero, and beyond the rows
        (333, [64, 0, 1, 200], 64, 1),
    ],
)
def test_a_traced_table_is_the_same(
    t: int, sizes: list[int], block_rows: int, multiple: int
) -> None:
    options: Any = {"row_multiple": multiple}
    ours = block_table(np.array(sizes), t, block_rows, xp=np, **options)
    traced = block_table(jnp.array(sizes, jnp.int32), t, block_rows, xp=jnp, **options)
    for one, other in zip(ours, traced, strict=True):
        np.testing.assert_array_equal(one, other)


@given(groups(), st.sampled_from([64, 128, 512]), st.sampled_from([1, 8]))
def test_every_row_is_in_one_block_of_its_expert(
    group: tuple[int, list[int]], block_rows: int, multiple: int
) -> None:
    t, sizes = group
    table, expert_blocks, blocks = block_table(
        np.array(sizes), t, block_rows, row_multiple=multiple, xp=np
    )
    assert len(table) == capacity(t, len(sizes), block_rows, multiple) >= blocks >= expert_blocks

    owner = np.full(t, -1)
    for number, row in enumerate(table[:blocks]):
        block = Block(**dict(zip(FIELDS, row.tolist(), strict=True)))
        assert (block.begin, block.end) == rows_of(t, sizes)[block.expert]
        assert (block.expert < len(sizes)) == (number < expert_blocks)
        assert block.base % multiple == 0
        assert 0 <= block.begin - block.base < multiple
        top = block.base + (number - block.first) * block_rows
        mine = slice(max(block.begin, top), min(block.end, top + block_rows))
        assert mine.start < mine.stop  # no block without rows
        assert (owner[mine] == -1).all()
        owner[mine] = block.expert
    expected = np.concatenate(
        [np.full(end - begin, e) for e, (begin, end) in enumerate(rows_of(t, sizes))]
    )
    np.testing.assert_array_equal(owner, expected)


@given(groups(), st.integers(1, 5), st.integers(0, 5), st.integers(1, 7), st.sampled_from([1, 2]))
def test_every_row_of_every_strip_is_made_once_by_one_dataflow(
    group: tuple[int, list[int]], strips: int, sym_strips: int, active: int, cluster: int
) -> None:
    t, sizes = group
    sym_strips = min(sym_strips, strips)
    mixed = 0 < sym_strips < strips
    active = max(active, 2) if mixed else active
    clusters = active // 2 if mixed else active * (sym_strips == strips)
    config = Config(tm=64, tn=64, warpgroups=1, cluster=cluster, sm_count=active * cluster)
    gemm = Gemm(m=t, k=64, n=64 * strips, experts=len(sizes))
    (table,), blocks = tables_of(np.array(sizes), gemm, config, np)
    plan = Plan(sym_strips=sym_strips, sym_clusters=clusters, active_clusters=active, layer=0)
    done = np.zeros((t, strips), int)
    owner = np.full(t, len(sizes))
    for expert, (begin, end) in enumerate(rows_of(t, sizes)[:-1]):
        owner[begin:end] = expert
    for number in range(active):
        for rank in range(cluster):
            at = Place(
                config=config, sizes=counts(config, gemm), plan=plan, cluster=number, rank=rank
            )
            rows = OfExperts(
                at=at, table=table, whole=capacity(t, len(sizes), config.block_rows),
                expert_blocks=blocks[0], all_blocks=blocks[1], experts=blocks[2],
            )  # fmt: skip
            items = [rows.item(i) for i in range(int(rows.items()))]
            items += [rows.empty_item(i) for i in range(int(rows.empty_items()))]
            for item in items:
                for tile in range(int(item.row_tiles)):
                    top = int(rows.tile_top(item, tile))
                    assert top % 8 == 0  # where TMA can begin to load
                    mine = slice(max(top, int(item.begin)), min(top + 64, int(item.end)))
                    if int(item.strip) < strips:  # else beyond N: clipped
                        done[mine, int(item.strip)] += 1
                        assert (owner[mine] == int(item.expert)).all()
    assert (done == 1).all()


@given(
    groups(),
    st.sampled_from([1, 2, 4, 8]),
    st.sampled_from([64, 128, 256]),
    st.sampled_from([None, Quantised(kind="int4", group=32, offset_dtype="float16")]),
)
def test_traffic_is_one_reading_for_each_block_of_rows(
    group: tuple[int, list[int]], cluster: int, tm: int, weights: Quantised | None
) -> None:
    t, sizes = group
    layout: Any = {"w_layout": "nk", "quantised": weights} if weights else {}
    gemm = Gemm(m=t, k=128, n=320, experts=len(sizes), out_dtype="float32", **layout)
    config = Config(
        tm=tm, warpgroups=1, cluster=cluster, sm_count=132, tk=128 if weights else 64, asym=False
    )
    plan = plan_launch(gemm, config, alpha=1.0)
    traffic = launch_traffic(gemm, config, plan, group_sizes=np.array(sizes))
    owned = [(begin, end) for begin, end in rows_of(t, sizes)[:-1] if end > begin]
    readings = sum(-(-(end - begin // 8 * 8) // (tm * cluster)) for begin, end in owned)
    aligned = sum(-(-(end - begin) // (tm * cluster)) for begin, end in owned)
    assert len(owned) <= aligned <= readings <= aligned + len(owned)
    w_bytes = 128 * 320 // 2 + 4 * (4 + 2) * 320 if weights else 2 * 128 * 320
    assert traffic.link_bytes == w_bytes * readings
    assert traffic.o_store_bytes == 4 * t * 320
    assert traffic.flops == 2 * 128 * 320 * sum(end - begin for begin, end in owned)
    assert traffic.flops <= traffic.mma_flops
    # one sum for 32 columns of X
    assert traffic.x_sum_bytes == (traffic.x_load_bytes * 4 // (2 * 32) if weights else 0)


@pytest.mark.parametrize("weights", [None, Quantised(kind="int4", group=128)])
def test_one_token_of_qwen_moves_eight_experts_of_128(weights: Quantised | None) -> None:
    layout: Any = {"w_layout": "nk", "quantised": weights} if weights else {}
    gemm = Gemm(m=8, k=2048, n=1536, experts=128, **layout)
    sizes = np.zeros(128, int)
    sizes[::16] = 1
    config = choose(gemm, sm_count=132)
    assert config.tm == (8 if weights else 64)
    plan = plan_launch(gemm, config, alpha=1.0)
    traffic = launch_traffic(gemm, config, plan, group_sizes=sizes)
    bits, scales = (4, 4 * 2048 // 128 * 1536) if weights else (16, 0)
    assert traffic.link_bytes == 8 * (2048 * 1536 * bits // 8 + scales)


@pytest.mark.parametrize("sms", [16, 132])
@pytest.mark.parametrize("model", MODEL_EXPERTS)
@pytest.mark.parametrize("weights", [None, Quantised(kind="int4", group=32)], ids=str)
def test_balanced_routing_reads_most_experts_once(
    model: str, sms: int, weights: Quantised | None
) -> None:
    layer = MODEL_EXPERTS[model]
    rng = np.random.default_rng(0)
    layout: Any = {"w_layout": "nk", "quantised": weights} if weights else {}
    for tokens in (1, 32, 256, 1024, 4096):
        t = tokens * layer.per_token
        k, n = layer.projections[0]
        gemm = Gemm(m=t, k=k, n=n, experts=layer.experts, **layout)
        found = choice(gemm, sm_count=sms, cluster=smallest_cluster(gemm.rows_each))
        check_fits(found.config, gemm)
        sizes = rng.multinomial(t, np.full(layer.experts, 1 / layer.experts))
        plan = plan_launch(gemm, found.config, alpha=found.alpha)
        traffic = launch_traffic(gemm, found.config, plan, group_sizes=sizes)
        once = np.count_nonzero(sizes) * k * n * gemm.w_bits // 8
        if found.bound != "link":
            continue  # reading W twice costs no time where the link is not what binds
        assert traffic.w_bytes <= 1.1 * once + k * n * gemm.w_bits // 8


@given(
    m=st.integers(1, 20000), k=st.sampled_from([128, 768, 4096, 28672]),
    n=st.sampled_from([64, 192, 1024, 6144, 57344]), kind=st.sampled_from(KINDS),
    group=st.sampled_from([None, 32, 64, 128]), offset_dtype=st.sampled_from([None, "bfloat16"]),
    dtype=st.sampled_from(["bfloat16", "float16"]), f32=st.booleans(), sms=st.integers(1, 132),
    cluster=st.sampled_from([None, 1, 2, 4, 8]), experts=st.sampled_from([None, 8]),
)  # fmt: skip
def test_the_choice_always_fits(
    m: int, k: int, n: int, kind: Any, group: int | None, offset_dtype: str | None, dtype: str,
    f32: bool, sms: int, cluster: int | None, experts: int | None,
) -> None:  # fmt: skip
    gemm = Gemm(
        m=m if experts else round_up(m, 8),
        k=k,
        n=n,
        quantised=Quantised(kind=kind, group=group, offset_dtype=offset_dtype),
        w_layout="nk",
        dtype=dtype,
        out_dtype="float32" if f32 else dtype,
        experts=experts,
    )
    if cluster is not None and cluster > sms:
        with pytest.raises(ValueError, match="sm_count"):
            choose(gemm, sm_count=sms, cluster=cluster)
        return
    found = choice(gemm, sm_count=sms, cluster=cluster)
    config = found.config
    assert shared_bytes(config, gemm) <= SHARED_BYTES_LIMIT
    traffic = launch_traffic(gemm, config, plan_launch(gemm, config, alpha=found.alpha))
    assert traffic.mma_flops >= traffic.flops
    assert not (scales_weights(config, gemm) and gemm.rows_each <= 128 * config.cluster)
    # AsymGEMM is there where one reading of W by SymGEMM does not serve all rows, unless not one
    # block of a cluster's scales fits into a K pass
    wanted = config.block_rows < gemm.rows_each and config.tm >= 64
    assert config.asym == wanted or (wanted and pass_unit(config, gemm) > config.w_stages)


@pytest.mark.parametrize("sms", [16, 132])
def test_programs_can_be_launched_and_have_names_of_their_own(sms: int) -> None:
    found = programs(sms)
    assert len({p.name for p in found}) == len(found) > 50
    assert all(p.shared_bytes <= SHARED_BYTES_LIMIT for p in found)
    assert all(p.host_bytes > 0 for p in found)
    assert all(p.multicast == ("cluster 1" not in p.name) for p in found if "m2048 k" in p.name)
    for word in ("int8", "float8_e4m3fn", "int4", "offsets", "experts", "tiles", "kc 512"):
        assert any(word in p.name for p in found), word


def test_too_much_shared_memory_names_what_to_lower() -> None:
    gemm, config = Gemm(m=64, k=64, n=64, experts=1), Config(x_stages=10, w_stages=10)
    assert shared_bytes(config, gemm) > SHARED_BYTES_LIMIT
    with pytest.raises(ValueError, match=r"expected at most 232448. Lower x_stages=10 or w_stages"):
        check_fits(config, gemm)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"m": 0}, "m=0: expected"),
        ({"k": 100}, "k=100: expected a multiple of 64"),
        ({"n": 2**31}, "n=2147483648: expected a multiple of 64 above 0 and below"),
        ({"experts": 0}, "experts=0: expected a number above 0"),
        ({"m": 2**24, "experts": 256}, "experts=256: expected a number above 0 that makes less"),
        ({"experts": None, "m": 9}, "m=9: expected a multiple of 8"),
        ({"dtype": "float32"}, "dtype='float32': expected one of"),
        ({"out_dtype": "float16"}, "out_dtype='float16': expected bfloat16 or float32"),
        ({"layers": 0}, "layers=0: expected a number from 1 up"),
        ({"quantised": Quantised(), "k": 128}, "w_layout='kn': expected 'nk' of quantised"),
        ({"quantised": Quantised(), "k": 192, "w_layout": "nk"}, "k=192: expected a multiple"),
        (
            {"quantised": Quantised(group=96), "k": 128, "w_layout": "nk"},
            "group=96: expected a divisor of k=128",
        ),
    ],
)
def test_a_shape_the_kernel_cannot_take_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(Gemm(m=8, k=64, n=64, experts=2), **change)


F16 = Gemm(
    m=256, k=256, n=64, dtype="float16", out_dtype="float16", w_layout="nk",
    quantised=Quantised(group=128),
)  # fmt: skip


def test_what_does_not_fit_quantised_weights_is_refused() -> None:
    small = Config(tm=16, tn=64, tk=128, asym=False, x_stages=2, w_stages=3, warpgroups=1)
    int4 = replace(F16, quantised=Quantised(kind="int4"))
    for change, gemm, message in (
        ({"tk": 64}, int4, "tk=64: expected at least 128 for kind='int4'"),
        ({"tm": 24}, F16, "tm=24: expected one of 8, 16, 32"),
        ({"tn": 192, "warpgroups": 2}, F16, "tn=192: expected a multiple of 128"),
        ({"tn": 128, "tm": 256}, int4, "tm=256: expected at most 128: a warpgroup has registers"),
        ({"asym": True}, F16, "tm=16: expected at least 64 with AsymGEMM"),
        (
            {"asym": True, "tm": 64},
            replace(F16, k=512, quantised=Quantised(group=256)),
            "w_stages=3: expected a multiple of 2 with AsymGEMM: whole groups",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            check_fits(replace(small, **change), gemm)
    half: Any = {"dtype": "bfloat16", "out_dtype": "float32"}
    for gemm, why in (
        (F16, "groups and dtype"),
        (replace(F16, quantised=Quantised(group=32), **half), "group=32, no multiple of"),
        (
            replace(F16, quantised=Quantised(group=128, offset_dtype="float32"), **half),
            "weights wit",
        ),
    ):
        with pytest.raises(ValueError, match=f"tm=256: expected at most 128 for {why}"):
            check_fits(replace(small, tm=256), gemm)
        assert choose(gemm, sm_count=4).tm == 128


def test_more_barriers_than_usual_count_as_shared_memory() -> None:
    gemm = Gemm(m=8, k=8192, n=128, w_layout="nk", quantised=Quantised())
    few = Config(tm=8, tn=64, tk=128, asym=False, x_stages=4, w_stages=4, warpgroups=1)
    many = replace(few, x_stages=70)  # 140 barriers of 8 bytes for X alone
    tiles = (many.x_stages - few.x_stages) * few.tm * few.x_columns * 2
    assert shared_bytes(many, gemm) - shared_bytes(few, gemm) == tiles + 1024
