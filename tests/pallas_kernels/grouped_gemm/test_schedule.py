"""Who computes what, as arithmetic: blocks, items, traffic, configurations."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pallas_kernels.grouped_gemm import (
    MODEL_EXPERTS,
    Config,
    GroupedGemm,
    check_fits,
    choose,
    launch_traffic,
    programs,
    shared_bytes,
    smallest_cluster,
)
from pallas_kernels.grouped_gemm.heuristics import typical_rows
from pallas_kernels.grouped_gemm.schedule import (
    FIELDS,
    Block,
    block_table,
    capacity,
    items_of,
    place,
)
from pallas_kernels.hopper import SHARED_BYTES_LIMIT


@st.composite
def groups(draw: st.DrawFn) -> tuple[int, list[int]]:
    """Rows and group sizes of every kind, out of range too."""
    t = draw(st.integers(1, 400))
    size = st.one_of(st.just(0), st.integers(0, 20), st.integers(-3, 2 * t))
    return t, draw(st.lists(size, min_size=1, max_size=20))


def rows_of(t: int, sizes: list[int]) -> list[tuple[int, int]]:
    """What the table should hold, counted by hand: (begin, end) of each expert."""
    found, begin = [], 0
    for size in sizes:
        end = min(begin + max(size, 0), t)
        found.append((begin, end))
        begin = end
    return [*found, (begin, t)]


@given(groups(), st.sampled_from([64, 128, 512]), st.sampled_from([1, 8]))
def test_every_row_is_in_one_block_of_its_expert(
    group: tuple[int, list[int]], block_rows: int, multiple: int
) -> None:
    t, sizes = group
    options: Any = {"row_multiple": multiple}
    table, expert_blocks, blocks = block_table(np.array(sizes), t, block_rows, xp=np, **options)
    traced = block_table(jnp.array(sizes, jnp.int32), t, block_rows, **options)
    for ours, theirs in zip((table, expert_blocks, blocks), traced, strict=True):
        np.testing.assert_array_equal(ours, theirs)
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


@given(groups(), st.integers(1, 5), st.integers(1, 7))
def test_items_are_dealt_once_each_and_evenly(
    group: tuple[int, list[int]], strips: int, active: int
) -> None:
    t, sizes = group
    table, expert_blocks, blocks = block_table(np.array(sizes), t, 64, xp=np)
    done: set[tuple[int, int, int]] = set()
    loads = []
    for cluster in range(active):
        mine = items_of(int(blocks), strips, cluster, active)
        with_w = items_of(int(expert_blocks), strips, cluster, active)
        loads.append(with_w)
        for number in range(mine):
            item = number * active + cluster
            block = Block(**dict(zip(FIELDS, table[item // strips].tolist(), strict=True)))
            within, strip = place(item, block, strips)
            assert 0 <= within < block.blocks
            assert 0 <= strip < strips
            # the running counter of tiles relies on it: items without W come last
            assert (block.expert < len(sizes)) == (number < with_w)
            done.add((block.expert, within, strip))
    assert len(done) == blocks * strips
    assert max(loads) - min(loads) <= 1


@given(groups(), st.sampled_from([1, 2, 4, 8]), st.sampled_from([64, 128, 256]))
def test_traffic_is_one_reading_for_each_block_of_rows(
    group: tuple[int, list[int]], cluster: int, tm: int
) -> None:
    t, sizes = group
    gemm = GroupedGemm(t=t, k=128, n=320, experts=len(sizes), out_dtype="float32")
    config = Config(tm=tm, stages=2, cluster=cluster, sm_count=132)
    traffic = launch_traffic(gemm, config, np.array(sizes))
    owned = [(begin, end) for begin, end in rows_of(t, sizes)[:-1] if end > begin]
    readings = sum(-(-(end - begin // 8 * 8) // (tm * cluster)) for begin, end in owned)
    aligned = sum(-(-(end - begin) // (tm * cluster)) for begin, end in owned)
    assert traffic.experts_read == len(owned) <= aligned <= readings <= aligned + len(owned)
    assert traffic.w_readings == readings
    assert traffic.link_bytes == 2 * 128 * 320 * readings
    assert traffic.o_store_bytes == 4 * t * 320
    assert traffic.flops == 2 * 128 * 320 * sum(end - begin for begin, end in owned)
    assert traffic.flops <= traffic.mma_flops
    assert traffic.items == 3 * readings
    assert traffic.most_items == -(-traffic.items // config.clusters)


def test_one_token_of_qwen_moves_eight_experts_of_128() -> None:
    gemm = GroupedGemm(t=8, k=2048, n=1536, experts=128)
    sizes = np.zeros(128, int)
    sizes[::16] = 1
    traffic = launch_traffic(gemm, choose(gemm, sm_count=132), sizes)
    assert traffic.link_bytes == 8 * 2 * 2048 * 1536
    assert traffic.experts_read == traffic.w_readings == 8


@pytest.mark.parametrize("sms", [16, 132])
@pytest.mark.parametrize("model", MODEL_EXPERTS)
def test_balanced_routing_reads_most_experts_once(model: str, sms: int) -> None:
    layer = MODEL_EXPERTS[model]
    rng = np.random.default_rng(0)
    for tokens in (1, 32, 256, 1024, 4096):
        t = tokens * layer.per_token
        cluster = smallest_cluster(t, layer.experts)
        k, n = layer.projections[0]
        gemm = GroupedGemm(t=t, k=k, n=n, experts=layer.experts)
        config = choose(gemm, sm_count=sms, cluster=cluster)
        check_fits(config, gemm)
        if cluster * 256 < typical_rows(t, layer.experts):
            continue  # no cluster is large enough
        sizes = rng.multinomial(t, np.full(layer.experts, 1 / layer.experts))
        traffic = launch_traffic(gemm, config, sizes)
        assert traffic.w_readings <= 1.1 * traffic.experts_read + 1


def test_programs_can_be_launched_and_have_names_of_their_own() -> None:
    for sms in (16, 132):
        found = programs(sms)
        assert len({p.name for p in found}) == len({p.key for p in found}) == len(found) > 10
        assert all(p.shared_bytes <= SHARED_BYTES_LIMIT for p in found)
        assert all(p.host_bytes > 0 for p in found)
    every: list[Any] = [p.function.keywords["config"] for p in programs(132)]  # type: ignore[attr-defined]
    configs = [c for c in every if isinstance(c, Config)]  # not of quantised experts
    assert {c.tm for c in configs} == {64, 128, 256}
    assert {c.tn for c in configs} == {64, 128}
    assert {c.cluster for c in configs} == {1, 2, 8}
    assert all(not p.multicast for p in programs(1))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tm": 96}, r"tm=96: expected a multiple of 64"),
        ({"tm": 64, "warpgroups": 2}, r"tm=64: expected a multiple of 128"),
        ({"tn": 320}, r"tn=320: expected a multiple of 64 up to 256"),
        ({"tk": 32}, r"tk=32: expected 64"),
        ({"stages": 0}, r"stages=0: expected a number above 0"),
        ({"cluster": 3}, r"cluster=3: expected 1, 2, 4 or 8"),
        ({"cluster": 8, "sm_count": 4}, r"sm_count=4: expected at least cluster=8"),
        ({"compute_registers": 248}, r"compute_registers=248: expected a multiple of 8, 24 to 240"),
    ],
)
def test_a_configuration_that_would_hang_is_refused(change: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(Config(), **change)


def test_too_much_shared_memory_names_what_to_lower() -> None:
    gemm, config = GroupedGemm(t=64, k=64, n=64, experts=1), Config(stages=10)
    assert shared_bytes(config, gemm) > SHARED_BYTES_LIMIT
    with pytest.raises(ValueError, match=r"expected at most 232448. Lower stages=10, tm or tn"):
        check_fits(config, gemm)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"t": 0}, "t=0: expected"),
        ({"k": 100}, "k=100: expected a multiple of 64"),
        ({"n": 2**31}, "n=2147483648: expected a multiple of 64 above 0 and below"),
        ({"experts": 0}, "experts=0: expected a number above 0"),
        ({"t": 2**24, "experts": 256}, "experts=256: expected a number above 0 that makes less"),
        ({"dtype": "float32"}, "dtype='float32': expected one of"),
        ({"out_dtype": "float16"}, "out_dtype='float16': expected bfloat16 or float32"),
        ({"layers": 0}, "layers=0: expected a number from 1 up"),
    ],
)
def test_a_shape_the_kernel_cannot_take_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(GroupedGemm(t=8, k=64, n=64, experts=2), **change)
