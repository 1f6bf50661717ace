"""Receivers without room, late or gone: each request is answered once, with the same tokens."""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from c2c.errors import SettingError
from c2c.systems.weaver.live.links import SlotInbox, SlotLink, check_slot, slot_shape
from c2c.systems.weaver.live.receiver import KvHost
from c2c.systems.weaver.live.woven import Woven, is_away
from c2c.transformer import (
    KvPool,
    Model,
    Runner,
    Shapes,
    block_elements,
    serve,
    superblock_elements,
)
from c2c.transformer.layers.linear import Reference
from experiments.random_requests import random_requests
from pallas_kernels.woven import Slot
from tests.systems.weaver.queue_link import QueueLink
from tests.tiers import tiered

SHAPES = Shapes(rows=(4,), budgets=(64,), width=2, mixes=False)
LIMIT_S = 0.05


class Inline(QueueLink):
    """A receiver that polls when its sender waits, until it is told to stop."""

    host: KvHost
    left = 10**9  # answers before it stops

    def _answer(self) -> Any:
        self.left -= 1
        if self.left >= 0:
            self.host.poll()
        return super()._answer()


class Pair:
    def __init__(self, model: Model, *, blocks: int = 24, ratio: float = 1.0, **more: Any) -> None:
        spec, self.link = model.spec, Inline(limit_s=LIMIT_S)
        self.pools = [
            KvPool(count, block_elements(spec), dtype=np.float32) for count in (24, blocks)
        ]
        self.host = self.link.host = KvHost(self.pools[1], spec, self.link, SHAPES, **more)
        self.woven = Woven(model.executor(self.pools[0]), self.link, SHAPES, ratio=ratio)
        self.runner = Runner(self.woven, SHAPES)

    def free(self) -> bool:
        self.host.poll()  # what was given last
        return all(len(pool.free) == pool.superblocks for pool in self.pools)


@pytest.fixture(scope="module")
def model(made: Callable[..., Any]) -> Model:
    result: Model = made("llama")[0]
    return result


@pytest.fixture(scope="module")
def alone(model: Model) -> list[list[int]]:
    pool = KvPool(24, block_elements(model.spec), dtype=np.float32)
    *_, done = serve(Runner(model.executor(pool), SHAPES), ASKED)
    return done.texts


ASKED = random_requests(7, prompt=80, new=40, vocab=96, seed=5)


def answered(pair: Pair, alone: list[list[int]]) -> list[int]:
    """Serve all; return who fell."""
    *_, done = serve(pair.runner, ASKED)
    assert done.texts == alone
    assert done.ended == [1] * len(ASKED)
    assert not pair.woven.away
    assert sum(pair.woven.fallbacks.values()) == len(done.fallen) == len(set(done.fallen))
    return done.fallen


@pytest.mark.slow
def test_a_receiver_without_blocks_gives_them_up(
    model: Model, alone: list[list[int]], caplog: pytest.LogCaptureFixture
) -> None:
    pair = Pair(model, blocks=4)
    with caplog.at_level(logging.WARNING, "c2c.systems.weaver"):
        fallen = answered(pair, alone)
    assert fallen
    assert set(pair.woven.fallbacks) == {"NO_BLOCKS"}
    said = [r.message for r in caplog.records if r.name.startswith("c2c.")]  # XLA may say more
    assert all("NO_BLOCKS" in line for line in said)
    told = sum(int(line.split()[0]) for line in said)
    assert told == len(fallen)
    assert pair.free()


def test_without_room_a_prompt_stays_at_home(model: Model, alone: list[list[int]]) -> None:
    pair = Pair(model, blocks=6, reserve=6)
    assert answered(pair, alone) == []
    assert pair.woven.brought == pair.woven.sent == 0
    assert pair.free()


@pytest.mark.parametrize("left", [0, 1, 3, 50])
def test_a_receiver_that_stops_answering_is_left(
    model: Model, alone: list[list[int]], left: int, caplog: pytest.LogCaptureFixture
) -> None:
    pair = Pair(model)
    pair.link.left = left
    with caplog.at_level(logging.WARNING, "c2c.systems.weaver"):
        fallen = answered(pair, alone)
    assert len(fallen) == pair.woven.fallbacks["LOST"] <= pair.woven.brought
    assert bool(fallen) == bool(pair.woven.brought)
    assert sum("not asked any more" in record.message for record in caplog.records) == 1
    assert pair.free()  # the host hears of the end at its next poll
    assert pair.host.is_over


def test_a_table_of_unknown_sequences_is_refused(model: Model, alone: list[list[int]]) -> None:
    pair = Pair(model)
    brought = pair.host._bring

    def forgets(message: Any) -> bool:
        there = brought(message)
        if pair.woven.brought == 2:
            pair.host.lease.give(pair.host._blocks.pop(message.sequence))
        return there

    pair.host._bring = forgets  # type: ignore[method-assign]
    fallen = answered(pair, alone)
    assert fallen
    assert set(pair.woven.fallbacks) == {"OTHER_TABLE"}
    assert pair.free()


def test_a_request_of_one_token_is_not_moved(model: Model) -> None:
    pair = Pair(model)
    asked = [
        each
        for each in random_requests(40, prompt=20, new=2, vocab=96, seed=1)
        if each.max_new_tokens == 1
    ]
    *_, done = serve(pair.runner, asked)
    assert [len(text) for text in done.texts] == [1] * len(asked)
    assert pair.woven.brought == 0


@pytest.mark.parametrize("word", tiered(["task", "none", "completion"]))
def test_bad_numbers_in_a_slot_cost_no_answer(
    model: Model, alone: list[list[int]], tmp_path: Path, word: str
) -> None:
    """A word of either side is set to what cannot be while tasks go."""
    shape = slot_shape(model.spec, SHAPES, np.float32)
    here, there = Pipe()
    with Slot.create(tmp_path / word, shape) as slot:
        pools = [KvPool(24, block_elements(model.spec), dtype=np.float32) for _ in range(2)]
        link = SlotLink(slot, here, shape, limit_s=20.0)
        host = KvHost(pools[1], model.spec, SlotInbox(slot, there), SHAPES)
        thread = threading.Thread(target=answers, args=(host,))
        thread.start()
        woven = Woven(model.executor(pools[0]), link, SHAPES, ratio=1.0)
        wait, waited = link.wait, itertools.count()

        def spoilt() -> Any:
            if next(waited) == 20 and word != "none":
                getattr(slot, word).store(77)
            return wait()

        link.wait = spoilt  # type: ignore[method-assign]
        *_, done = serve(Runner(woven, SHAPES), ASKED)
        link.close()
        thread.join()
    assert done.texts == alone
    assert done.ended == [1] * len(ASKED)
    assert (sum(woven.fallbacks.values()) > 0) == (word != "none")
    assert all(len(pool.free) == pool.superblocks for pool in pools)


def answers(host: KvHost) -> None:
    while not host.is_over:
        host.poll()
        time.sleep(0)


@settings(max_examples=8, deadline=None)
@given(data=st.data())
def test_a_request_has_one_home_from_its_first_token_on(model: Model, data: Any) -> None:
    ratio = data.draw(st.floats(0.0, 1.0))
    pair = Pair(model, ratio=ratio)
    served = serve(pair.runner, ASKED)
    homes: dict[int, set[bool]] = {}
    for _ in served:
        for request in pair.runner.requests:
            stay = pair.runner._stays[request]
            if stay.started and stay.filled == len(stay.ids):
                homes.setdefault(request, set()).add(request in pair.woven.away)
    for request, seen in homes.items():
        assert seen == {is_away(0, request, ratio)}
    assert pair.free()


@settings(max_examples=60, deadline=None)
@given(superblocks=st.integers(1, 9), reserve=st.integers(0, 9), wants=st.lists(st.integers(1, 12)))
def test_a_reserve_is_left_to_the_others(
    model: Model, superblocks: int, reserve: int, wants: list[int]
) -> None:
    spec = model.spec
    pool = KvPool(superblocks, superblock_elements([spec]), dtype=np.float32)
    if reserve > superblocks:
        with pytest.raises(SettingError, match=f"reserve={reserve}.*the {superblocks} superblocks"):
            pool.lease(spec, reserve=reserve)
        return
    hot, cold = pool.lease(spec, reserve=reserve), pool.lease(spec)
    for want in wants:
        if want <= hot.available:
            hot.take(want, "hot")
        else:
            assert hot.held + want > (superblocks - reserve) * 4
    assert cold.available >= 4 * reserve
    cold.take(cold.available, "cold")
    assert hot.available < 4  # of the superblock that it has begun


@pytest.mark.parametrize("ratio", [-0.1, 1.5, float("nan")])
def test_a_share_that_is_none_is_refused(model: Model, ratio: float) -> None:
    with pytest.raises(SettingError, match=rf"ratio={ratio}: expected a share in \[0, 1\]"):
        Pair(model, ratio=ratio)


def test_layers_that_share_arrays_are_refused(model: Model) -> None:
    pair = Pair(model)
    pair.woven.local.linear = Reference(by_layer=False)
    with pytest.raises(SettingError, match="linear"):
        Woven(pair.woven.local, pair.link, SHAPES, ratio=0.5)


def test_a_slot_that_a_step_does_not_fit_is_refused(model: Model) -> None:
    shape = slot_shape(model.spec, SHAPES, np.float32)
    check_slot(replace(shape, rows=5, outstanding=2), shape)
    few = replace(shape, rows=3)
    said = f"slot='{few.nbytes} bytes for 3 rows': expected at least {shape.nbytes} bytes for 4"
    with pytest.raises(SettingError, match=said):
        check_slot(few, shape)
    with pytest.raises(SettingError, match="slot="):
        check_slot(replace(shape, head_dim=16), shape)
