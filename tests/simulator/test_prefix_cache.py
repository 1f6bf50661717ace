"""Laws of the prefix cache in the loop, for unlike systems: see `c2c.serving.memory.prefixes`."""

from __future__ import annotations

import functools
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from c2c.config import build, load
from c2c.errors import SettingError
from c2c.policies import ByPriority
from c2c.serving import Prepared, Serving, prepare
from c2c.simulator import Simulation, build_machine
from c2c.workloads import RequestBlock
from tests.simulator.worlds import requests, setup, simulate, with_settings
from tests.tiers import tiered

BLOCK = 64
HOST = 4e9
SPECS = ("llama-3-3b", "llama-3-8b", "llama-3-3b")


def talks(n: int, models: int, rate: float, seed: int, whole: float = 0.2) -> RequestBlock:
    """Return requests whose prompts go on from earlier ones of their model, or begin anew.

    Some are a prompt that was there before, to the token.
    """
    g = np.random.default_rng(seed)
    model = g.integers(0, models, n)
    known: dict[tuple[int, tuple[int, ...]], int] = {}
    paths: list[list[tuple[int, ...]]] = [[()] for _ in range(models)]
    prompts, keys, first = [], [], [0]
    for m in model.tolist():
        path = paths[m][g.integers(len(paths[m]))]
        if not path or g.random() > whole:
            path = (
                *path[: g.integers(0, len(path) + 1)],
                *g.integers(0, 3, g.integers(1, 5)).tolist(),
            )
        paths[m].append(path)
        prompts.append(len(path) * BLOCK - (hash(path) % BLOCK if g.random() < 0.5 else 0))
        keys += [known.setdefault((m, path[: j + 1]), len(known) + 1) for j in range(len(path))]
        first.append(len(keys))
    made = requests(np.cumsum(g.exponential(1.0 / rate, n)), model, prompts, g.integers(1, 60, n))
    spread = np.random.default_rng(1).integers(0, 1 << 63, len(known) + 1).astype(np.uint64)
    return with_whole_blocks(
        replace(
            made, block_tokens=BLOCK, block_first=np.array(first), block_keys=spread[np.array(keys)]
        )
    )


def with_whole_blocks(block: RequestBlock) -> RequestBlock:
    """Return the requests without the keys of blocks that their prompts do not fill."""
    hashes = block.hashes()
    assert hashes is not None
    kept = hashes.upto(block.prompt_tokens.astype(np.int64) // BLOCK)
    return replace(block, block_first=kept.first, block_keys=kept.values)


def spaced(n: int) -> NDArray[np.float64]:
    """Return arrivals so far apart that each request is alone."""
    return np.arange(n, dtype=np.float64) * 100.0


def without(block: RequestBlock) -> RequestBlock:
    return block.hashed(None, 0)


SYSTEMS: dict[str, dict[str, Any]] = {
    "streamed": {},
    "kept": {"_system": "c2cserve_plus"},
    "copied": {"_system": "serverlessllm", "_mig": "2x48gb"},
    "parked": {"_system": "aegaeon", "_mig": "1x96gb", "engines__kv_host_bytes": 8e9},
    "set_aside": {"_mig": "2x48gb", "preempt": ByPriority(after_s=0.5)},
    "apart": {"disaggregation__prompt_share": 0.4},
}


@functools.cache
def prepared(name: str, **cache: Any) -> Prepared:
    """Return a system with a prefix cache in HBM and host memory, or in what `cache` says."""
    given = dict(SYSTEMS[name])
    system, mig = given.pop("_system", None), given.pop("_mig", "7x12gb")
    changes = {
        f"prefix_cache__{k}": v for k, v in ({"hbm": True, "host_bytes": HOST} | cache).items()
    }
    made = setup(*SPECS, mig=mig)
    if system is not None:
        spec = build(
            load([f"system={system}", f"mig={mig}", "catalog=dense6"])
        ).prepared.setup.system
        made = replace(made, system=replace(spec, max_batch=32, check_slo=False))
    if name == "set_aside":
        low = replace(made.deployments[0], priority=-1)
        made = replace(made, deployments=(low, *made.deployments[1:]))
    return prepare(replace(made, system=with_settings(made.system, **given, **changes)))


def check_state(fleet: Any, s: Serving) -> None:
    """Sums of the table are those of its rows; HBM holds what is counted, and no more."""
    b, n = s.blocks, len(s.device)
    rows = b.entry[: b.table[0].begun]
    rows = rows[rows.pool >= 0]
    for p, pool in enumerate(b.pool):
        mine = rows[rows.pool == p]
        assert pool.rows == len(mine)
        assert pool.bytes == pytest.approx(mine.bytes.sum())
        assert pool.idle_bytes == pytest.approx(mine.bytes[mine.pins == 0].sum())
        assert len(np.unique(mine.key)) == len(mine)
        if p >= n:
            assert pool.bytes <= pool.capacity_bytes * (1 + 1e-12)
            assert not mine.pins.any()
    for d, dev in enumerate(s.device):
        used = sum(
            s.instance[i].kv_used * fleet.costs.kv_bytes[_pair(fleet, s, i)]
            - s.instance[i].parked_bytes
            for i in range(dev.first, dev.first + fleet.residents)
            if s.instance[i].model >= 0
        )
        assert dev.kv_bytes == pytest.approx(used, abs=1.0)
        pinned = b.pool[d].bytes - b.pool[d].idle_bytes
        parked = s.instance.parked_bytes[dev.first : dev.first + fleet.residents].sum()
        assert pinned <= dev.kv_bytes + parked + 1.0
        if dev.running >= 0:
            taken = dev.kv_bytes + dev.weight_bytes + b.pool[d].idle_bytes
            assert taken <= dev.capacity_bytes * (1 + 1e-12) + 1.0


def _pair(fleet: Any, s: Any, i: int) -> int:
    return int(fleet.deployment[s.instance[i].model].arch * fleet.costs.kinds + s.instance[i].kind)


def _has_blocks(block: RequestBlock) -> Any:
    assert block.block_first is not None
    return np.diff(block.block_first) > 0


def served(
    what: Prepared, block: RequestBlock, *, compiled: bool = True, parts: int = 4
) -> tuple[Any, Simulation]:
    """Return the records and the simulation, whose state is looked at on the way and at the end."""
    simulation = Simulation.start(what, build_machine(what), compiled=compiled, buffer=256)
    records: list[Any] = []
    edges = np.linspace(0, len(block), parts + 1).astype(int)
    for k, (lo, hi) in enumerate(pairwise(edges)):
        simulation.feed(block.take(slice(lo, hi)), records.append, is_last=k == parts - 1)
        check_state(simulation.prepared.fleet, simulation.state)
    found = np.sort(np.concatenate(records), order="id").view(np.recarray)
    s = simulation.state
    assert (s.blocks.entry.pins == 0).all()
    assert (s.instance.kv_used == 0).all()
    assert np.allclose(s.device.kv_bytes, 0.0, atol=1.0)
    return found, simulation


@pytest.mark.parametrize("name", SYSTEMS)
@settings(max_examples=6, deadline=None)
@given(seed=st.integers(0, 2**31), rate=st.sampled_from([1.0, 8.0, 60.0]))
def test_what_is_found_is_not_computed(name: str, seed: int, rate: float) -> None:
    block = talks(60, len(SPECS), rate, seed)
    what = prepared(name)
    records, simulation = served(what, block)
    stats, state = simulation.stats(), simulation.state
    assert len(records) == len(block)
    assert (records.failure == 0).all()
    hits = records.cached_hbm_tokens + records.cached_host_tokens
    assert (hits <= records.prompt_tokens - 1).all()
    assert (records.cached_hbm_tokens >= 0).all()
    assert (records.cached_host_tokens >= 0).all()
    assert hits.sum() == stats.prefix_hbm_tokens + stats.prefix_host_tokens
    assert stats.prefix_asked_tokens == records.prompt_tokens[_has_blocks(block)].sum()
    computed = int(stats.prefill_tokens.sum())
    if state.count[0].preempted == 0:
        assert computed + hits.sum() == records.prompt_tokens.sum()
    assert (records.first_token_s > records.started_s).all()
    assert (records.started_s >= records.admitted_s).all()


@pytest.mark.parametrize("name", tiered(["streamed", "kept", "apart"]))
def test_compiled_and_interpreted_loops_agree(name: str) -> None:
    block = talks(50, len(SPECS), 6.0, 5)
    what = prepared(name)
    one, other = (served(what, block, compiled=c)[0] for c in (True, False))
    assert one.tobytes() == other.tobytes()
    assert one.cached_hbm_tokens.sum() > 0


@pytest.mark.parametrize("name", SYSTEMS)
def test_nothing_changes_without_hashes_or_without_a_cache(name: str) -> None:
    block = talks(60, len(SPECS), 6.0, 3)
    off = prepared(name, hbm=False, host_bytes=0.0)
    base = simulate(off, without(block), compiled=True)[0]
    assert simulate(off, block, compiled=True)[0].tobytes() == base.tobytes()
    # Host memory for blocks is none for weights: alike where all fit in any case.
    again = simulate(prepared(name), without(block), compiled=True)[0]
    assert again.tobytes() == base.tobytes()
    assert (base.cached_hbm_tokens == 0).all()


def test_all_is_found_that_came_before_where_memory_holds_all_and_time_is_enough() -> None:
    block = talks(80, 1, 1.0, 11)
    block = replace(block, arrival_s=spaced(80))
    for cache in ({"hbm": False, "host_bytes": 60e9}, {"hbm": True, "host_bytes": 60e9}):
        records, _ = served(prepared("streamed", **cache), block)
        hits = records.cached_hbm_tokens + records.cached_host_tokens
        seen: set[int] = set()
        for r, (lo, hi) in enumerate(
            zip(block.block_first[:-1], block.block_first[1:], strict=True)  # type: ignore[index]
        ):
            keys = block.block_keys[lo:hi].tolist()  # type: ignore[index]
            n = next((j for j, k in enumerate(keys) if k not in seen), len(keys))
            assert hits[r] == min(n * BLOCK, block.prompt_tokens[r] - 1)
            seen |= set(keys)


def test_blocks_from_host_memory_are_paid_for() -> None:
    block = talks(40, 1, 1.0, 2)
    block = replace(block, arrival_s=spaced(40))
    records, simulation = served(prepared("streamed", hbm=False, host_bytes=60e9), block)
    stats = simulation.stats()
    token_bytes = simulation.prepared.fleet.costs.kv_bytes[0]
    blocks = -(-records.cached_host_tokens // BLOCK) * BLOCK  # the last one's last token as well
    assert stats.prefix_loaded_bytes == blocks.sum() * token_bytes
    assert stats.kv_in_bytes == stats.prefix_loaded_bytes
    base = simulate(prepared("streamed", hbm=False, host_bytes=0.0), block, compiled=True)[0]
    with_hits = records.cached_host_tokens > 4 * BLOCK
    gained = (base.first_token_s - records.first_token_s)[with_hits]
    assert with_hits.any()
    assert (gained > 0.0).all()


def test_requests_at_once_share_one_copy() -> None:
    """A common beginning takes up room once, so that more requests fit a batch."""
    n, shared = 24, 120
    keys = np.random.default_rng(0).integers(0, 1 << 62, shared).astype(np.uint64)
    made = requests(np.r_[0.0, np.full(n - 1, 200.0)], 0, shared * BLOCK + 10, 400)
    block = replace(
        made, block_tokens=BLOCK, block_first=np.arange(n + 1) * shared, block_keys=np.tile(keys, n)
    )
    what = prepared("streamed", host_bytes=0.0)
    few = replace(what.setup, deployments=what.setup.deployments[:1])
    records, _ = served(prepare(few), block, parts=1)
    base = simulate(prepare(few), without(block), compiled=True)[0]
    capacity = what.fleet.kv_capacity[0, 0]
    each = shared * BLOCK + 410
    assert capacity // each < n - 1 <= 1 + (capacity - each) // 410
    assert (records.cached_hbm_tokens[1:] == shared * BLOCK).all()
    assert records.admitted_s.max() < 200.1  # at the first step boundary
    assert base.admitted_s.max() > 201.0  # some waited for room


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 2**31))
def test_more_host_memory_finds_no_less_where_requests_come_one_by_one(seed: int) -> None:
    block = talks(60, 1, 1.0, seed)
    block = replace(block, arrival_s=spaced(60))
    found = []
    for host_bytes in (0.05e9, 0.1e9, 0.2e9, 0.4e9, 4e9):
        records, _ = served(prepared("streamed", hbm=False, host_bytes=host_bytes), block)
        found.append(int(records.cached_host_tokens.sum()))
    assert found == sorted(found)


def test_a_request_that_begins_again_is_counted_once() -> None:
    block = talks(200, len(SPECS), 2.0, 9)
    records, simulation = served(prepared("set_aside"), block)
    stats = simulation.stats()
    hits = records.cached_hbm_tokens + records.cached_host_tokens
    assert simulation.state.count[0].preempted > 0
    assert stats.prefix_asked_tokens == records.prompt_tokens[_has_blocks(block)].sum()
    assert hits.sum() == stats.prefix_hbm_tokens + stats.prefix_host_tokens
    assert stats.prefill_tokens.sum() + hits.sum() >= records.prompt_tokens.sum()


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"prefix_cache__host_bytes": -1.0}, "system.prefix_cache.host_bytes"),
        ({"prefix_cache__host_bytes": float("inf")}, "system.prefix_cache.host_bytes"),
        ({"prefix_cache__host_bytes": 1e15}, "system.prefix_cache.host_bytes"),
    ],
)
def test_settings_that_cannot_work_are_refused(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(SettingError, match=field):
        prepare(setup(**changes))
