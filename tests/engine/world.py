"""An engine without processes, over the pure step: a world in which all that happens is drawn."""

from __future__ import annotations

import asyncio
import math
import random
from collections import Counter
from collections.abc import Sequence
from typing import Any

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
from c2c.engine.record import StepRow
from c2c.engine.variants import told_of
from c2c.models import from_hf_config
from c2c.serving import FAIL_NONE, Prepared
from c2c.serving.loop import Step
from c2c.serving.port import Arrival, Cancelled, Event
from c2c.serving.prepare.prefixes import with_blocks
from c2c.serving.state import Loop
from experiments.serving.laid_out import laid_out
from experiments.serving.settings import overrides_of, register, settings_of
from tests.engine.fake_workers import Clocked, FakeWorker, token_of
from tests.transformer.random_checkpoints import config_of

__all__ = ["ROWS", "World", "check", "prepared_for"]

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
        self.steps: list[StepRow] = []
        self.ledger = Ledger(self._tell, self._end, self._score, self._find)
        self.places = [Place(device=k) for k in range(len(prepared.kind_of))]
        names = [d.name for d in prepared.setup.deployments]
        self.sizes = dict(zip(names, prepared.fleet.weight_bytes, strict=True))
        self.store = FakeStore(
            {name for name, held in zip(names, prepared.held, strict=True) if held}
        )
        self.backend = (Clocked if is_clocked else LiveBackend)(
            prepared, self.places, self.ledger, retries=retries, on_step=self.steps.append,
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
        self.fleet, self.rules = prepared.fleet, prepared.new_rules()
        self.state = prepared.new_serving(slots=2, buffer=1, rules=self.rules)
        if self.fleet.caches_prefixes:
            self.state = with_blocks(prepared, self.state, 64, 1, tells=True)
        self.step = Step(Loop(self.fleet, self.rules, self.state), compiled=True)
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
        assert not self.told[request], "it is told before any token"
        assert 0 < tokens < len(self.asked[request].ids)
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
