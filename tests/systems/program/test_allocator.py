"""The allocator's blocks never overlap, are used again, and merge."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from c2c.systems.program import Allocator, DeviceFault, Emulated


@given(
    steps=st.lists(st.tuples(st.booleans(), st.integers(1, 3 << 20), st.integers(0, 99))),
    seed=st.none() | st.integers(0, 9),
    has_guards=st.booleans(),
)
def test_live_blocks_do_not_overlap(
    steps: list[tuple[bool, int, int]], seed: int | None, has_guards: bool
) -> None:
    device = Emulated(0)
    allocator = Allocator(
        device,
        whims=None if seed is None else random.Random(seed),
        guards=random.Random(1) if has_guards else None,
    )
    live: dict[int, tuple[int, str]] = {}
    for is_free, nbytes, which in steps:
        if is_free and live:
            address = sorted(live)[which % len(live)]
            allocator.free(address)
            del live[address]
        else:
            pool = "ab"[which % 2]
            live[allocator.allocate(nbytes, pool)] = (nbytes, pool)
    ordered = sorted((a, a + n) for a, (n, _) in live.items())
    for (_, end), (begin, _) in pairwise(ordered):
        assert end + has_guards * 512 <= begin
    for address, (nbytes, _) in live.items():
        device.write(address, bytes(min(nbytes, 64)))  # inside memory of the device


def test_best_fit_uses_the_smallest_free_block_and_merges_neighbours() -> None:
    allocator = Allocator(Emulated(0))
    first, second, third = (allocator.allocate(n) for n in (4096, 512, 1024))
    allocator.allocate(512)
    allocator.free(first)
    allocator.free(third)
    assert allocator.allocate(600) == third  # 1024 fits better than 4096
    allocator.free(second)
    assert allocator.allocate(4096 + 512) == first  # two neighbours became one


def test_pools_do_not_share_blocks() -> None:
    allocator = Allocator(Emulated(0))
    address = allocator.allocate(512, "graph")
    allocator.free(address)
    assert allocator.allocate(512) != address
    assert allocator.allocate(512, "graph") == address


def test_what_is_not_allocated_cannot_be_freed() -> None:
    allocator = Allocator(Emulated(0))
    with pytest.raises(DeviceFault, match="not allocated"):
        allocator.free(4096)
    with pytest.raises(DeviceFault, match="0 bytes"):
        allocator.allocate(0)
