"""Laws of ledger and backend under the pure step, with workers that are lost at any moment.

Each request ends once; what was delivered is what it draws, none twice, none left out.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from c2c.config import load
from c2c.cost import load_constants
from c2c.engine import Options, fleet_of
from c2c.engine import messages as say
from c2c.engine.backend import LiveBackend
from c2c.engine.between import Between
from c2c.engine.block_keys import block_keys
from c2c.engine.catalog import Entry
from c2c.engine.keeper import Keeper
from c2c.engine.ledger import Entry as LedgerEntry
from c2c.engine.ledger import Ledger
from c2c.engine.places import Place
from c2c.engine.variants import told_of
from c2c.models import from_hf_config
from c2c.serving import FAIL_DEADLINE, FAIL_NONE, Prepared, prepare
from c2c.serving.compiled_step import CompiledStep
from c2c.serving.port import Arrival, Cancelled, Event
from c2c.serving.prepare.prefixes import with_blocks
from c2c.serving.state import SETTLED
from experiments.serving.laid_out import laid_out
from experiments.serving.settings import overrides_of, register, settings_of
from tests.engine.fake_workers import Clocked, FakeWorker, token_of
from tests.transformer.random_checkpoints import config_of

ROWS = 4


def prepared_for(
    workers: int, families: Sequence[str], *more: str, pool_bytes: int = 8 << 20
) -> Prepared:
    register()
    given_ = settings_of(load(overrides_of(["port=0", *more]), "serve"))
    specs = [from_hf_config(config_of(f), f) for f in families]
    entries = [Entry(name=s.name, path=None, spec=s, context=400) for s in specs]  # type: ignore[arg-type]
    options = Options(
        workers=workers, rows=(1, ROWS), budgets=(64,), context=400, pool_bytes=pool_bytes
    )
    constants = load_constants("gh200")
    system, options = laid_out(given_.given, entries, options, given_.engine.system, constants)
    return fleet_of(entries, options, system, constants)


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


class FakeStore:
    """Weights that come when the world says so."""

    def __init__(self, here: set[str]) -> None:
        self.here = here
        self.coming: list[str] = []

    def fetch(self, model: str) -> None:
        if model not in self.coming:
            self.coming.append(model)

    def stop(self, model: str) -> None:
        if model in self.coming:
            self.coming.remove(model)

    def drop(self, model: str) -> None:
        self.stop(model)
        self.here.discard(model)


class World:
    """An engine without processes: everything that happens is drawn."""

    def __init__(
        self, prepared: Prepared, seed: int, retries: int, *, is_clocked: bool = False
    ) -> None:
        self.rng = random.Random(seed)
        self.prepared = prepared
        self.told: dict[int, list[int]] = {}
        self.ends: Counter[int] = Counter()
        self.why: dict[int, str] = {}
        self.scored: dict[int, list[float]] = {}
        self.ledger = Ledger(self._tell, self._end, self._score, self._find)
        self.places = [Place(device=k) for k in range(len(prepared.kind_of))]
        names = [d.name for d in prepared.setup.deployments]
        self.sizes = dict(zip(names, prepared.fleet.weight_bytes, strict=True))
        self.store = FakeStore(
            {name for name, held in zip(names, prepared.held, strict=True) if held}
        )
        self.backend = (Clocked if is_clocked else LiveBackend)(
            prepared, self.places, self.ledger, retries=retries, on_step=lambda row: None,
            between=Between(looks=True), store=self.store,  # type: ignore[arg-type]
        )  # fmt: skip
        self.wishes: Counter[int] = Counter()
        self.keeper = Keeper(
            {name: number for number, name in enumerate(names)}, self.store,  # type: ignore[arg-type]
            put=self.backend.put, now_s=self.backend.now_s, answer=self._answer,
        )  # fmt: skip
        told = told_of(prepared.setup.system.layout)
        self.workers = [
            FakeWorker(p, self.backend, self.rng, ROWS, self.store.here, told) for p in self.places
        ]
        self.fleet, rules = prepared.fleet, prepared.new_rules()
        self.state = prepared.new_serving(slots=2, buffer=1, rules=rules)
        if self.fleet.caches_prefixes:
            self.state = with_blocks(prepared, self.state, 64, 1, tells=True)
        self.step = CompiledStep(self.fleet, rules, self.state).step
        for number, instance in enumerate(self.state.instance):  # those that are there already
            if instance.model >= 0:
                self.places[instance.on_device].instances[number] = names[instance.model]
        self.backend.serve(self.take)
        self.recorded: dict[int, tuple[int, int]] = {}  # why it failed, and its tokens
        self.asked: dict[int, say.Ask] = {}
        self.models: dict[int, int] = {}
        self.found: dict[int, int] = {}

    def _tell(self, request: int, token: int, score: say.Scored | None) -> None:
        assert not self.ends[request], "nothing after the end"
        assert score is None
        if self.asked[request].prompt_scores is not None:
            places = range(len(self.asked[request].ids) - 1)
            assert self.scored[request] == [-at for at in places], "each once, before any token"
        self.told[request].append(token)

    def _score(self, request: int, scores: tuple[say.Scored, ...]) -> None:
        assert not self.ends[request], "nothing after the end"
        self.scored[request] += [score.logprob for score in scores]

    def _find(self, request: int, tokens: int) -> None:
        assert request not in self.found, "it is told once"
        self.found[request] = tokens

    def _end(self, request: int, entry: LedgerEntry, why: str) -> None:
        assert entry.delivered == self.told[request]
        self.ends[request] += 1
        self.why[request] = why

    def _answer(self, wish: say.Manage, refused: str) -> None:
        assert self.wishes[wish.number] == 1, "a wish is answered once"
        self.wishes[wish.number] = 0
        if wish.what in ("load", "pin") and not refused:
            assert wish.model in self.store.here
        if wish.what == "unload" and not refused:
            assert wish.model not in self.store.here

    def wish(self) -> None:
        number, name = len(self.wishes), self.rng.choice(list(self.sizes))
        self.wishes[number] = 1
        what: Any = self.rng.choice(("load", "unload", "pin", "unpin"))
        self.keeper.manage(say.Manage(number=number, model=name, what=what))

    def ask(self, number: int) -> None:
        rng = self.rng
        ids = tuple(rng.randrange(90) for _ in range(rng.randint(1, 150)))
        model = rng.randrange(len(self.sizes))
        if self.fleet.caches_prefixes:
            others = [ids, *(a.ids for r, a in self.asked.items() if self.models[r] == model)]
            ids = (*rng.choice(others)[: rng.choice((64, 100, 128, 192))], *ids)
        ask = say.Ask(
            request=number, model="", ids=ids, new=rng.randint(1, 60),
            temperature=0.0, seed=0, stop=(),
            prompt_scores=0 if number % 2 and not self.fleet.caches_prefixes else None,
        )  # fmt: skip
        self.send(ask, model)

    def send(self, ask: say.Ask, model: int) -> None:
        self.asked[ask.request], self.told[ask.request] = ask, []
        self.scored[ask.request], self.models[ask.request] = [], model
        blocks = block_keys(str(model), ask.ids) if self.fleet.caches_prefixes else ()
        self.ledger.open(ask, model, 0.0, blocks)
        self.backend.put(
            Arrival(
                at_s=self.backend.now_s(), request_id=ask.request, model=model,
                prompt_tokens=len(ask.ids), max_output_tokens=ask.new,
                deadline_s=ask.deadline_s or math.inf, blocks=blocks,
            )
        )  # fmt: skip

    def take(self, event: Event) -> None:
        self.state, actions = self.step(self.state, event)
        for row in self.state.records[: self.state.count[0].out]:
            assert int(row.id) not in self.recorded
            self.recorded[int(row.id)] = int(row.failure), int(row.output_tokens)
            if row.failure != FAIL_NONE:
                self.ledger.end(int(row.id), "failed")
        self.state.count[0].out = 0
        self.backend.submit(float(self.state.count[0].now_s), actions)
        self.keeper.taken(event, self.fleet, self.state)

    def read(self) -> bool:
        """Have some weights come, if any are to; say whether any are."""
        if not self.store.coming:
            return False
        if self.rng.random() < 0.3:
            model = self.store.coming.pop(0)
            self.store.here.add(model)
            room = self.prepared.setup.platform.host.memory_bytes
            assert sum(self.sizes[name] for name in self.store.here) <= room
            self.keeper.fetched(model, "")
            self.backend.fetched(model, failed=False)
        return True

    def check_room(self) -> None:
        """No worker needs more memory than there is, but for what is rounded up."""
        fleet, costs = self.fleet, self.fleet.costs
        archs = [int(d.arch) for d in fleet.deployment]
        block = [64 * float(costs.kv_bytes[arch * costs.kinds]) for arch in archs]
        room = max(
            fleet.kv_capacity[arch, 0] * each / 64 for arch, each in zip(archs, block, strict=True)
        )
        model_of = {
            key: self.models[request]
            for request, ask in self.asked.items()
            for key in block_keys(str(self.models[request]), ask.ids)
        }
        for worker in (w for w in self.workers if w.is_up):
            used, whole = set(worker.kept), Counter[int]()
            for request, stay in worker.stays.items():
                used |= stay.held[0]
                whole[self.models[request]] += max(0, stay.held[1] - 1)
            whole += Counter(model_of[key] for key in used)
            assert sum(block[m] * n for m, n in whole.items()) <= room

    async def run(
        self, requests: int, loss: float, cancel: float, given_up: float, wish: float
    ) -> None:
        next_ = 0
        idle = 0
        while idle < 3:
            roll = self.rng.random()
            if next_ < requests and roll < 0.3:
                self.ask(next_)
                next_ += 1
            if next_ < requests and self.rng.random() < wish:
                self.wish()
            if next_ == requests and self.keeper.pinned:  # what is pinned may keep others out
                self.wish()
            for worker, writer in zip(self.workers, self.places, strict=True):
                if worker.is_gone:
                    continue
                if not worker.is_up:
                    if self.rng.random() < 0.3:
                        worker.restart()
                        self.backend.started(writer)
                elif self.rng.random() < loss:
                    others = [w for w in self.workers if w is not worker and not w.is_gone]
                    is_last = bool(others) and self.rng.random() < given_up
                    worker.lose(for_good=is_last, by_others=self.rng.random() < 0.5)
            if self.told and self.rng.random() < cancel:
                request = self.rng.choice(list(self.told))
                if self.ledger.end(request, "cancelled"):
                    self.backend.put(Cancelled(at_s=self.backend.now_s(), request_id=request))
            did = [worker.work() for worker in self.workers if worker.is_up]
            did.append(self.read())
            if isinstance(self.backend, Clocked):
                self.backend.go_off()
            if self.fleet.caches_prefixes:
                self.check_room()
            await asyncio.sleep(0)  # what is only written down has its turn
            busy = (
                any(did)
                or next_ < requests
                or bool(self.keeper.pinned)
                or not all(w.is_up or w.is_gone for w in self.workers)
            )
            idle = 0 if busy else idle + 1


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    seed=st.integers(0, 2**32 - 1),
    loss=st.sampled_from([0.0, 0.01, 0.05]),
    cancel=st.sampled_from([0.0, 0.01]),
    given_up=st.sampled_from([0.0, 0.3]),
    retries=st.sampled_from([0, 1, 1000]),
    is_crowded=st.booleans(),
)
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

    check(asyncio.run(scenario()), is_kept=retries == 1000 and not cancel)


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
    cancel=st.sampled_from([0.0, 0.02]),
)
def test_so_it_does_where_prompts_begin_with_blocks_of_others(
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


def check(world: World, *, is_kept: bool) -> None:
    """Hold a world that has come to rest to the laws."""
    assert len(world.ledger) == 0
    assert set(world.ends) == set(range(25))
    assert set(world.ends.values()) == {1}
    for request, told in world.told.items():
        assert told == [token_of(request, k) for k in range(len(told))]
        if world.why[request] == "stop":
            assert told[-1] % 11 == 0
        if world.why[request] == "length":
            assert len(told) == world.asked[request].new
        if world.why[request] in ("stop", "length"):
            assert world.recorded[request] == (FAIL_NONE, len(told))
        else:
            assert world.recorded[request][0] != FAIL_NONE
    assert not +world.wishes
    for k, entry in enumerate(world.state.hold):  # pins are instances', once nothing is pinned
        model = world.prepared.fleet.home_model[k]
        mine = [i for i in world.state.instance if i.model == model]
        assert entry.pins == len(mine)
    count = world.state.count[0]
    assert count.arrived == 25 == count.finished + count.failed
    if is_kept:
        assert set(world.why.values()) <= {"stop", "length"}
    for worker in (w for w in world.workers if not w.is_gone):  # nothing is held in vain
        assert not worker.stays
        assert not worker.place.held


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
