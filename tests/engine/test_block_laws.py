"""Laws of an engine whose prompts begin with blocks of others: workers keep what the loop keeps."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from c2c.serving import Prepared
from tests.engine.world import World, check, prepared_for


@pytest.fixture(scope="module")
def sharing() -> Callable[[], Prepared]:
    """Models whose prompts share blocks, in little room."""
    found = prepared_for(
        2, ("llama", "qwen3", "mixtral", "qwen2"), "system.prefix_cache.hbm=true",
        pool_bytes=2 << 20,
    )  # fmt: skip
    return lambda: found


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    seed=st.integers(0, 2**32 - 1),
    loss=st.sampled_from([0.0, 0.0, 0.02]),
    cancel=st.sampled_from([0.0, 0.02, 0.2]),
)
def test_every_request_ends_once_where_prompts_begin_with_blocks_of_others(
    sharing: Callable[[], Prepared], seed: int, loss: float, cancel: float
) -> None:
    """And workers keep the blocks that the loop keeps, and no others."""

    async def scenario() -> World:
        world = World(sharing(), seed, retries=1000)
        await world.run(25, loss, cancel, 0.0, 0.0)
        return world

    world = asyncio.run(scenario())
    check(world, is_kept=not cancel)
    blocks = world.state.blocks
    rows = blocks.entry[: blocks.table[0].begun]
    assert not (rows.pins[rows.pool >= 0]).any()
    for worker in world.workers:
        known = set(rows.key[rows.pool == worker.place.device].tolist())
        assert worker.kept <= known
        assert worker.has_been_lost or worker.kept == known
    event(f"evicted: {bool(blocks.pool.evicted.any())}")
    event(f"found: {any(world.found.values())}")
