"""A fleet in parts simulated apart, and put together again: the same records, totals, phases."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from c2c.policies import RandomIdle
from c2c.serving import Prepared, ServingSetup, prepare
from c2c.simulator import RunStats, Simulation, build_machine, run_blocks
from c2c.simulator.arrivals.groups import groups_of, ranges_of
from c2c.simulator.shards import Shard, dealt, merged_stats, merged_timeline, split
from c2c.workloads import RequestBlock, Workload, build_workload
from tests.simulator.worlds import check_equal, random_requests, setup
from tests.tiers import tiered

MODELS = ("llama-3-3b", "llama-3-8b") * 4


def _fleet(cells: int, **more: Any) -> ServingSetup:
    return replace(setup(*MODELS, superchips=4, starts_active=True, **more), cells=cells)


def _blocks(block: RequestBlock, size: int = 37) -> list[RequestBlock]:
    return [block.take(slice(k, k + size)) for k in range(0, len(block), size)]


def run(
    prepared: Prepared, blocks: Any, models: Any = None, rows: int = 200, compiled: bool = False
) -> tuple[Any, RunStats, Any]:
    simulation = Simulation.start(
        prepared, build_machine(prepared), compiled=compiled, timeline_rows=rows, models=models
    )
    found: list[Any] = []
    stats = run_blocks(simulation, blocks, found.append)
    return np.concatenate(found), stats, simulation.timeline()


def of_shard(workload: Workload, shards: tuple[Shard, ...], number: int) -> list[RequestBlock]:
    return [block for k, block in dealt(workload.blocks(), shards) if k == number]


def check_parts(runs: list[Any], whole: Any, stats: RunStats) -> None:
    """Assert that the runs of all shards have the records and the totals of one run."""
    records = np.concatenate([r for r, _, _ in runs])
    assert np.sort(records, order="id").tobytes() == np.sort(whole, order="id").tobytes()
    check_equal(merged_stats([s for _, s, _ in runs]), stats)


@pytest.mark.parametrize("more", tiered([{}, {"place": RandomIdle()}]))
def test_shards_together_are_one_run(more: dict[str, Any]) -> None:
    prepared = prepare(_fleet(4, **more))
    block = random_requests(250, len(MODELS), 6.0, seed=3)
    workload = Workload(models=MODELS, source=lambda: iter(_blocks(block)))
    whole, stats, timeline = run(prepared, workload.blocks())
    shards = split(prepared, workload, shards=3, requests=250, part_rows=10**9)
    assert len(shards) == 3
    runs = [
        run(prepared, of_shard(workload, shards, k), s.models.tolist())
        for k, s in enumerate(shards)
    ]
    check_parts(runs, whole, stats)
    assert merged_timeline([t for _, _, t in runs], 200).tobytes() == timeline.tobytes()


def test_conversations_with_a_prefix_cache_in_shards_are_one_run() -> None:
    prepared = prepare(_fleet(4, prefix_cache__hbm=True, prefix_cache__host_bytes=2e9))
    given = {"kind": "conversations", "requests": 300, "models": 8, "rate_rps": 8.0,
             "block_tokens": 32, "max_total_tokens": 4000}  # fmt: skip
    workload = build_workload(given, [f"model-{k}" for k in range(8)], 2)
    whole, stats, _ = run(prepared, workload.blocks(), compiled=True)
    assert stats.prefix_hbm_tokens > 0
    shards = split(prepared, workload, shards=2, requests=300, part_rows=10**9)
    runs = [
        run(prepared, of_shard(workload, shards, k), s.models.tolist(), compiled=True)
        for k, s in enumerate(shards)
    ]
    check_parts(runs, whole, stats)


@pytest.mark.parametrize(("cells", "more"), [(2, {}), (3, {"place": RandomIdle()})])
def test_groups_one_after_another_are_one_run(cells: int, more: dict[str, Any]) -> None:
    """The whole fleet is served in time's order while phases of the timeline are still wanted."""
    prepared = prepare(_fleet(cells, **more))
    block = random_requests(3000, len(MODELS), 12.0, seed=5)
    together, stats, _ = run(prepared, _blocks(block), rows=10**5, compiled=True)
    for size in (37, 1000, 3000):
        apart, also, _ = run(prepared, _blocks(block, size), rows=0, compiled=True)
        assert apart.tobytes() == together.tobytes()
        check_equal(also, stats)


@given(st.integers(0, 10**6), st.integers(1, 7), st.integers(1, 12))
def test_ranges_are_the_smallest_whose_chips_are_neighbours(
    seed: int, chips: int, models: int
) -> None:
    g = np.random.default_rng(seed)
    homes = [
        np.sort(g.choice(chips, int(g.integers(1, min(chips, 3) + 1)), False))
        for _ in range(models)
    ]
    first = np.cumsum([0, *map(len, homes)])
    fleet = SimpleNamespace(
        home_first=first,
        home_chip=np.concatenate(homes),
        home_model=np.repeat(np.arange(models), np.diff(first)),
    )
    found = ranges_of(SimpleNamespace(fleet=fleet, setup=SimpleNamespace(chips=chips)))  # type: ignore[arg-type]
    cuts = [0] + [
        c for c in range(1, chips) if not any(h[0] < c <= h[-1] for h in homes)
    ]  # where no model has chips on both sides
    wanted = [max(c for c in cuts if c <= h[0]) for h in homes]
    used = sorted(set(wanted))
    assert found.of_model.tolist() == [used.index(w) for w in wanted]
    assert found.first_chip.tolist() == [0, *used[1:]]


def test_chips_that_share_a_model_are_one_group() -> None:
    assert set(groups_of(prepare(_fleet(1)))) == {0}
    for cells in (2, 4):
        prepared = prepare(_fleet(cells))
        group = groups_of(prepared)
        assert len(set(group)) == cells
        chips = [
            set(prepared.fleet.home_chip[group[prepared.fleet.home_model] == g].tolist())
            for g in range(cells)
        ]
        assert sum(len(c) for c in chips) == len(set().union(*chips)) == 4


@given(st.integers(1, 9), st.integers(1, 400), st.integers(0, 10**6))
def test_every_model_is_in_one_shard_and_one_part(shards: int, rows: int, seed: int) -> None:
    prepared = _PREPARED
    block = random_requests(300, len(MODELS), 5.0, seed)
    workload = Workload(models=MODELS, source=lambda: iter(_blocks(block)))
    made = split(prepared, workload, shards=shards, requests=300, part_rows=rows)
    at_once = Workload(models=MODELS, source=lambda: iter([block]))
    same = split(prepared, at_once, shards=shards, requests=300, part_rows=rows)
    assert [s.models.tolist() for s in made] == [s.models.tolist() for s in same]
    assert 1 <= len(made) <= min(shards, 4)
    assert sorted(np.concatenate([s.models for s in made]).tolist()) == list(range(len(MODELS)))
    for shard in made:
        assert sorted(np.concatenate(shard.parts).tolist()) == shard.models.tolist()
        assert all(len(part) for part in shard.parts)
    groups = groups_of(prepared)
    owners = [{k for k, s in enumerate(made) if (groups[s.models] == g).any()} for g in range(4)]
    assert all(len(o) == 1 for o in owners)


_PREPARED = prepare(_fleet(4))
