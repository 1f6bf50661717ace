"""Laws of ledger and backend under the pure step, with workers that are lost at any moment.

Each request ends once; what was delivered is what it draws, none twice, none left out.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, event, example, given, settings
from hypothesis import strategies as st

from c2c.engine import messages as say
from c2c.serving import FAIL_DEADLINE, FAIL_NONE, Prepared, prepare
from c2c.serving.state import SETTLED
from tests.engine.fake_workers import FakeWorker, token_of
from tests.engine.world import World, check, prepared_for


@pytest.fixture(scope="module")
def prepared() -> Prepared:
    return prepared_for(2, ("llama", "qwen3", "mixtral", "qwen2"))


@pytest.fixture(scope="module")
def scaled() -> Callable[[], Prepared]:
    """One model over four devices, whose layout changes as soon as prompts wait."""
    found = prepared_for(
        1, ("llama",), "system=cocoserve", "node=cpu_x4", "system.layout.replicated=2",
        "system.layout.copies=3", "system.layout.migrated=1", "system.layout.between=1",
        "system.vary.prompts=1",
    )  # fmt: skip
    return lambda: found  # without the length of its representation


@pytest.fixture(scope="module")
def alone() -> Callable[[], Prepared]:
    """Two workers, whose steps have prompts or decodes, never both."""
    found = prepared_for(2, ("llama", "qwen3"), "system/batch=prompts_alone")
    return lambda: found


class Fleets:
    """Both of them, without the length of their representation."""

    def __init__(self, prepared: Prepared) -> None:
        sizes = sorted(prepared.fleet.weight_bytes)
        setup = prepared.setup
        host = replace(setup.platform.host, memory_bytes=int(sizes[-1] + sizes[-2]))
        self._roomy = prepared
        self._crowded = prepare(replace(setup, platform=replace(setup.platform, host=host)))

    def of(self, *, is_crowded: bool) -> Prepared:
        """The models of the tests; crowded: memory has room for the weights of two."""
        return self._crowded if is_crowded else self._roomy


@pytest.fixture(scope="module")
def fleets(prepared: Prepared) -> Fleets:
    return Fleets(prepared)


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    seed=st.integers(0, 2**32 - 1),
    loss=st.sampled_from([0.0, 0.01, 0.05]),
    cancel=st.sampled_from([0.0, 0.01]),
    given_up=st.sampled_from([0.0, 0.3]),
    retries=st.sampled_from([0, 1, 1000]),
    is_crowded=st.booleans(),
)
@example(seed=1, loss=0.0, cancel=0.0, given_up=0.0, retries=1000, is_crowded=False)
def test_every_request_ends_once_with_the_tokens_it_draws(
    fleets: Fleets,
    seed: int,
    loss: float,
    cancel: float,
    given_up: float,
    retries: int,
    is_crowded: bool,
) -> None:
    async def scenario() -> World:
        world = World(fleets.of(is_crowded=is_crowded), seed, retries)
        await world.run(25, loss, cancel, given_up, 0.1 if is_crowded else 0.0)
        return world

    world = asyncio.run(scenario())
    check(world, is_kept=retries == 1000 and not cancel)
    if not loss and not cancel:  # each token of a prompt is in one step, of one row
        told = [row for row in world.steps if row.number >= 0]
        assert sum(row.prompt_tokens for row in told) == sum(
            len(ask.ids) for ask in world.asked.values()
        )
        assert not any(row.again for row in told)


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    seed=st.integers(0, 2**32 - 1),
    loss=st.sampled_from([0.0, 0.02]),
    cancel=st.sampled_from([0.0, 0.02]),
)
@example(seed=1, loss=0.0, cancel=0.0)
def test_so_it_does_where_decodes_wait_for_prompts(
    alone: Callable[[], Prepared], seed: int, loss: float, cancel: float
) -> None:
    async def scenario() -> World:
        world = World(alone(), seed, retries=1000)
        await world.run(25, loss, cancel, 0.0, 0.0)
        return world

    world = asyncio.run(scenario())
    check(world, is_kept=not cancel)
    told = [row for row in world.steps if row.number >= 0]
    assert any(row.decodes > 0 for row in told)
    assert not any(row.prompt_tokens > 0 and row.decodes > 0 for row in told)


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    seed=st.integers(0, 2**32 - 1),
    loss=st.sampled_from([0.0, 0.02, 0.1]),
    cancel=st.sampled_from([0.0, 0.02]),
)
def test_so_it_does_while_its_layers_and_its_cache_move_between_devices(
    scaled: Callable[[], Prepared], seed: int, loss: float, cancel: float
) -> None:
    async def scenario() -> World:
        world = World(scaled(), seed, retries=1000, is_clocked=True)
        await world.run(25, loss, cancel, 0.0, 0.0)
        return world

    world = asyncio.run(scenario())
    check(world, is_kept=not cancel)
    (worker,) = world.workers
    assert worker.changes >= world.places[0].relaid["changes"]
    event("changes" if worker.changes else "no change")
    # A change that sends nothing comes with the next run, of which there may be none.
    assert worker.variant == world.places[0].variant
    assert world.state.relayout[0].state == SETTLED
    np.testing.assert_allclose(world.state.taken, 0.0)


@pytest.mark.parametrize("by_others", [False, True])
def test_a_request_in_the_step_at_both_losses_is_given_up(
    prepared: Prepared, by_others: bool
) -> None:
    """Unless others ended the workers."""
    world = World(prepared, 0, retries=1)

    async def scenario() -> None:
        world.ask(0)
        for round_ in range(2):
            await asyncio.sleep(0)
            for _ in range(5):  # the load, then the first step begins
                for worker in world.workers:
                    worker.work()
                await asyncio.sleep(0)
                if any(p.doing is not None and p.doing.action.__class__.__name__ == "RunSteps"
                       for p in world.places):  # fmt: skip
                    break
            at = next(k for k, p in enumerate(world.places) if p.doing is not None)
            assert world.ends[0] == 0
            world.workers[at].lose(by_others=by_others)
            assert world.ends[0] == (0 if by_others else round_)
            world.workers[at].restart()
            world.backend.started(world.places[at])
        await asyncio.sleep(0)

    asyncio.run(scenario())
    assert world.why == ({} if by_others else {0: "worker_lost"})


def test_one_that_kills_its_worker_is_found_and_takes_no_other_with_it(prepared: Prepared) -> None:
    async def scenario(retries: int) -> World:
        world = World(prepared, 3, retries)
        for worker in world.workers:
            worker.poison = {4, 11}
        await world.run(25, 0.0, 0.0, 0.0, 0.0)
        return world

    for retries in (0, 3):
        world = asyncio.run(scenario(retries))
        assert {k for k, why in world.why.items() if why == "worker_lost"} == {4, 11}
        assert {why for k, why in world.why.items() if k not in (4, 11)} <= {"stop", "length"}
        # Alone, it is at a loss once more than is retried; before that the step is lost once.
        assert sum(worker.losses for worker in world.workers) <= 2 * (retries + 2)


def ask_of(number: int, *, prompt: int, new: int, deadline_s: float | None = None) -> say.Ask:
    return say.Ask(
        request=number, model="", ids=tuple(range(1, prompt + 1)), new=new,
        temperature=0.0, seed=0, stop=(), deadline_s=deadline_s,
    )  # fmt: skip


def unstopped(count: int, *, tokens: int) -> list[int]:
    """Return requests that draw so many tokens, none of which ends them."""
    numbers = (n for n in range(99) if all(token_of(n, k) % 11 for k in range(tokens)))
    return list(itertools.islice(numbers, count))


async def work(world: World, until: Callable[[FakeWorker], bool]) -> FakeWorker:
    """Have the workers work; return the first of which something holds."""
    for _ in range(200):
        for worker in world.workers:
            if worker.is_up and not worker.is_gone:
                worker.work()
            if until(worker):
                return worker
        await asyncio.sleep(0)
    raise AssertionError("it never came to that")


@pytest.mark.parametrize("done", [0, 1, 2])
def test_what_was_delivered_of_requests_computed_alone_is_told_before_the_device_is_lost(
    prepared: Prepared, done: int
) -> None:
    async def scenario() -> World:
        world = World(prepared, 0, retries=1000)
        for number in numbers:
            world.send(ask_of(number, prompt=10, new=5), 0)
        one = await work(world, lambda w: w.run is not None and len(w.run.fills) == 2)
        one.lose()
        one.restart()
        world.backend.started(one.place)
        before = one.place.doing
        assert before is not None
        await work(world, lambda w: w is one and len(before.alone or ()) == 2 - done)
        one.lose(for_good=True)
        await work(world, lambda w: len(world.ends) == 2)
        return world

    numbers = unstopped(2, tokens=5)
    world = asyncio.run(scenario())
    for request, told in world.told.items():
        assert told == [token_of(request, k) for k in range(5)]
    assert world.why == dict.fromkeys(numbers, "length")
    assert world.recorded == dict.fromkeys(numbers, (FAIL_NONE, 5))


def test_an_operators_wish_is_answered_though_all_workers_are_given_up(fleets: Fleets) -> None:
    async def scenario(what: Any) -> str:
        world = World(fleets.of(is_crowded=True), 0, retries=3)
        name = next(n for n in world.sizes if n not in world.store.here)
        world.send(ask_of(0, prompt=3, new=5), list(world.sizes).index(name))
        await work(world, lambda w: w.place.is_waiting)
        world.wishes[0] = 1
        world.keeper.manage(say.Manage(number=0, model=name, what=what))
        for worker in world.workers:
            worker.lose(for_good=True)
        while world.read():
            await asyncio.sleep(0)
        assert world.wishes[0] == 0
        assert name in world.store.here
        return world.why[0]

    assert [asyncio.run(scenario(what)) for what in ("pin", "load")] == ["failed", "failed"]


@pytest.mark.parametrize("is_late", [False, True])
def test_a_deadline_that_passes_in_a_requests_last_step_is_missed_for_all(
    prepared: Prepared, is_late: bool
) -> None:
    async def scenario() -> World:
        world = World(prepared, 0, retries=0)
        world.send(ask_of(number, prompt=3, new=2, deadline_s=1000.0), 0)
        await work(world, lambda w: len(world.told[number]) == 1)
        world.backend._start_s -= 1001.0 if is_late else 0.0
        await work(world, lambda w: bool(world.ends[number]))
        return world

    (number,) = unstopped(1, tokens=2)
    world = asyncio.run(scenario())
    assert len(world.told[number]) == 2  # what was drawn is delivered
    assert world.ends[number] == 1
    failure, tokens = world.recorded[number]
    if is_late:
        assert (world.why[number], failure) == ("failed", FAIL_DEADLINE)
    else:
        assert (world.why[number], failure, tokens) == ("length", FAIL_NONE, 2)
