"""Blocks that requests share: the same tokens as without, and pages that are counted."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from c2c.engine.block_keys import block_keys
from c2c.transformer import Executables, Model, Sampling
from c2c.transformer.running.kv_pool import KvPool, Lease, superblock_elements
from c2c.transformer.running.runner import Runner, Step
from c2c.transformer.running.shapes import Shapes
from tests.compilations import compilations
from tests.tiers import tiered

SHAPES = Shapes(rows=(1, 4), budgets=(16, 64), width=4)
LENGTHS = (64, 65, 128, 129, 192, 193, 40, 150)
NEW = 8
_TOLERANCE = 2e-4  # of log-probabilities in float32: products of other shapes add up otherwise


def prompts(seed: int) -> list[list[int]]:
    """Return prompts, most of which begin as an earlier one does."""
    rng = random.Random(seed)
    found: list[list[int]] = []
    for k, length in enumerate(LENGTHS):
        ids = [rng.randrange(96) for _ in range(length)]
        if k % 3:
            other = rng.choice(found)
            ids[: len(other)] = other[:length]
        found.append(ids)
    return [*found, found[2], found[5]]


class Alone:
    """Each prompt's draws with a cache of its own, and their log-probabilities."""

    def __init__(self, model: Model, asked: Sequence[Sequence[int]]) -> None:
        runner = Runner(model.executor(KvPool.for_one(model.spec, 4, dtype="float32")), SHAPES)
        self.told = [self._of(runner, ids) for ids in asked]

    @staticmethod
    def _of(runner: Runner, ids: Sequence[int]) -> list[tuple[int, Any]]:
        runner.submit(0, ids, new=NEW, sampling=Sampling(), scores=5)
        told, at = [], 0
        while runner.requests:
            n = min(64, len(ids) - at)
            result = runner.finish(runner.start(Step(fill=(0, n)) if n else Step(decode=(0,))))
            told += [(token, result.scores[0]) for _, token, _ in result.tokens]
            at += n
        return told


class Two:
    """Unlike models over one pool, all shapes ready, and what their prompts draw alone."""

    def __init__(self, models: Sequence[Model], executables: Executables) -> None:
        self.models, self.executables = models, executables
        self.asked = prompts(1)
        self.alone = [Alone(model, self.asked) for model in models]
        self.size = superblock_elements((m.spec for m in models), blocks=2)

    def pool(self, superblocks: int) -> KvPool:
        """Return a pool with so many superblocks to take, of a size that all is compiled for."""
        pool = KvPool(24, self.size, dtype="float32", executables=self.executables)
        del pool.free[superblocks:]
        return pool


@pytest.fixture(scope="module")
def two(made: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> Two:
    executables = Executables(tmp_path_factory.mktemp("shared") / "repository")
    models = [
        replace(made(name)[0], executables=executables) for name in ("llama", "qwen3")
    ]  # of unlike layers and heads
    result = Two(models, executables)
    for model in models:
        Runner(model.executor(result.pool(24)), SHAPES).warm()
    return result


class Client:
    """One model's requests, given steps at random."""

    def __init__(self, two: Two, number: int, pool: KvPool, rng: random.Random) -> None:
        model = two.models[number]
        self.lease = pool.lease(model.spec)
        self.name, self.pool, self.rng, self.asked = str(number), pool, rng, two.asked
        self.runner = Runner(model.executor(pool, self.lease), SHAPES)
        self.waiting = [k for k in range(len(two.asked)) for _ in range(2)]
        rng.shuffle(self.waiting)
        self.prompts: dict[int, int] = {}  # by request
        self.left: dict[int, int] = {}
        self.got: dict[int, list[tuple[int, Any]]] = {}
        self.ended: dict[int, bool] = {}  # whether it has all its tokens
        self.computed = self.found = 0

    @property
    def over(self) -> bool:
        return not self.waiting and not self.runner.requests

    def step(self) -> None:
        rng, runner = self.rng, self.runner
        while self.waiting and len(runner.requests) < rng.randint(1, runner.seats):
            k = self.waiting.pop()
            request = len(self.prompts)
            ids = self.asked[k]
            runner.submit(
                request, ids, new=NEW, sampling=Sampling(), scores=5,
                keys=block_keys(self.name, ids),
            )  # fmt: skip
            self.prompts[request], self.left[request], self.got[request] = k, len(ids), []
        filling = [r for r in runner.requests if self.left[r]]
        decode = tuple(r for r in runner.requests if not self.left[r] and rng.random() < 0.8)
        fill = None
        if filling and (rng.random() < 0.8 or not decode):
            r = rng.choice(filling)
            tokens = self.left[r] if rng.random() < 0.7 else rng.randint(1, self.left[r])
            there = runner.reuse(r, tokens)
            assert there < tokens
            self.found += there
            fill = r, min(64, tokens - there)
            self.left[r] -= there
        step = Step(fill=fill, decode=decode)
        if fill is None and not decode:
            return
        while runner.missing(step):
            others = [r for r in runner.requests if fill is None or r != fill[0]]
            self.cancel(rng.choice(others))
            step = Step(fill=fill, decode=tuple(r for r in decode if r in runner.requests))
        result = runner.finish(runner.start(step))
        if fill is not None:
            self.computed += fill[1]
            self.left[fill[0]] -= fill[1]
        for request, token, why in result.tokens:
            self.got[request].append((token, result.scores[request]))
            if why is not None:
                self.ended[request] = True
        if runner.requests and rng.random() < 0.05:
            self.cancel(rng.choice(runner.requests))

    def cancel(self, request: int) -> None:
        """End a request in the middle; its prompt comes again."""
        self.runner.cancel(request)
        self.waiting.insert(0, self.prompts[request])
        self.ended[request] = False


def check_counts(pool: KvPool, clients: Sequence[Client]) -> None:
    """No page is free while somebody uses it, and none is held that nobody does."""
    users: Counter[tuple[int, int]] = Counter()
    for client in clients:
        for blocks in client.runner.executor._blocks.values():  # type: ignore[attr-defined]
            users.update((id(client.lease), first) for first in blocks)
    users.update((id(lease), first) for lease, first in pool.kept.values())
    for client in clients:
        mine = {first: n for (lease, first), n in users.items() if lease == id(client.lease)}
        assert client.lease.held == len(mine)
        assert {f: n - 1 for f, n in mine.items() if n > 1} == client.lease._more
        free = [first for blocks in client.lease._open.values() for first in blocks]
        assert not set(free) & set(mine)


@pytest.mark.parametrize(
    ("superblocks", "forgets"), tiered([(16, 0.2), (24, 0.0), (8, 0.0)], slow=1)
)
def test_any_steps_draw_what_each_prompt_draws_alone(
    two: Two, superblocks: int, forgets: float
) -> None:
    found = computed = 0
    for seed in range(2):
        rng = random.Random(seed)
        pool = two.pool(superblocks)
        clients = [Client(two, number, pool, rng) for number in range(2)]
        with compilations(traced=True) as events:
            while not all(client.over for client in clients):
                for client in clients:
                    if not client.over:
                        client.step()
                    check_counts(pool, clients)
                if pool.kept and rng.random() < forgets:
                    pool.forget(rng.sample(list(pool.kept), rng.randint(1, len(pool.kept))))
        assert events == [], "everything was ready"
        for client, alone in zip(clients, two.alone, strict=True):
            for request, k in client.prompts.items():
                told = client.got[request]
                assert len(told) == NEW or not client.ended[request]
                for (token, score), (wanted, expected) in zip(told, alone.told[k], strict=False):
                    assert token == wanted
                    assert [t for t, _ in score.top] == [t for t, _ in expected.top]
                    np.testing.assert_allclose(
                        [p for _, p in score.top], [p for _, p in expected.top], atol=_TOLERANCE
                    )
            found, computed = found + client.found, computed + client.computed
        assert sum(client.lease.held for client in clients) == len(pool.kept)
        pool.forget([*pool.kept, 1])  # nobody keeps the last
        assert len(pool.free) == superblocks
    assert found > computed / 8, "prompts begin alike"
    if not forgets and superblocks == 24:
        assert found > computed / 2


def test_a_whole_block_with_the_last_token_is_computed(two: Two) -> None:
    pool = two.pool(8)
    runner = Runner(two.models[0].executor(pool), SHAPES)
    ids = two.asked[2]
    assert len(ids) == 128
    for request, there in ((0, 0), (1, 64)):
        runner.submit(request, ids, new=1, sampling=Sampling(), keys=block_keys("m", ids))
        assert runner.reuse(request, 128) == there
        assert runner.reuse(request, 128) == 0, "once"
        for n in (64,) * ((128 - there) // 64):
            result = runner.finish(runner.start(Step(fill=(request, n))))
        assert result.tokens[0][1] == two.alone[0].told[2][0][0]
    assert len(pool.kept) == 1
    runner.submit(2, ids, new=1, sampling=Sampling(), keys=block_keys("m", ids))
    assert runner.reuse(2, 64) == 0, "of 64 tokens one at least is computed"


def test_a_prompt_under_way_goes_on_after_blocks_that_have_come(two: Two) -> None:
    """Its part of such a block is given back."""
    pool = two.pool(8)
    runner = Runner(two.models[1].executor(pool), SHAPES)
    ids, keys = two.asked[5], block_keys("m", two.asked[5])
    assert len(ids) == 193
    for request in (0, 1):
        runner.submit(request, ids, new=2, sampling=Sampling(), keys=keys)
    runner.finish(runner.start(Step(fill=(1, 30))))
    for n in (64, 64, 64, 1):
        runner.finish(runner.start(Step(fill=(0, n))))
    assert runner.reuse(1, 40) == 34, "up to 64, of 70"
    assert runner.reuse(1, 129) == 128
    assert runner.executor.lease.held == 4  # type: ignore[attr-defined]
    (first,) = runner.finish(runner.start(Step(fill=(1, 1)))).tokens
    (second,) = runner.finish(runner.start(Step(decode=(1,)))).tokens
    assert [first[1], second[1]] == [token for token, _ in two.alone[1].told[5][:2]]


def test_of_two_copies_one_is_kept(two: Two) -> None:
    pool = two.pool(8)
    runner = Runner(two.models[0].executor(pool), SHAPES)
    ids = two.asked[7]
    for request in (0, 1):
        runner.submit(request, ids, new=2, sampling=Sampling(), keys=block_keys("m", ids))
        assert runner.reuse(request, len(ids)) == 0
    lease = runner.executor.lease  # type: ignore[attr-defined]
    for n in (64, 64, len(ids) - 128):
        before = lease.held
        runner.finish(runner.start(Step(fill=(0, n))))
        runner.finish(runner.start(Step(fill=(1, n))))
        assert lease.held == before + 1 + (n < 64), "of a whole block there is one copy"
    assert runner.finish(runner.start(Step(decode=(0, 1)))).tokens == tuple(
        (r, two.alone[0].told[7][1][0], "length") for r in (0, 1)
    )
    assert lease.held == len(pool.kept) == (len(ids) - 1) // 64


def test_kept_blocks_give_way_before_a_step_lacks_any(two: Two) -> None:
    pool = two.pool(4)
    runners = [Runner(model.executor(pool), SHAPES) for model in two.models]
    keys: list[int] = []
    for k, ids in enumerate(two.asked * 2):
        number = k * 2 // len(two.asked) % 2
        keys += block_keys(f"{k} {number}", ids)
        runner = runners[number]
        runner.submit(0, ids, new=1, sampling=Sampling(), keys=block_keys(f"{k} {number}", ids))
        for at in range(0, len(ids), 64):
            step = Step(fill=(0, min(64, len(ids) - at)))
            assert not runner.missing(step)
            result = runner.finish(runner.start(step))
        assert result.tokens[0][1] == two.alone[number].told[k % len(two.asked)][0][0]
    assert list(pool.kept) == keys[-len(pool.kept) :], "the older ones went"
    assert 0 < len(pool.kept) < len(keys)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_pages_are_free_once_their_last_user_gives_them(data: st.DataObject) -> None:
    class Spec:
        layers, kv_heads, head_dim, latent = 2, 1, 1, None

    pool = object.__new__(KvPool)
    pool.superblock, pool.superblocks, pool.free, pool.kept = 64 * 6, 4, [3, 2, 1, 0], {}
    leases = [Lease(pool, Spec(), 2, 0) for _ in range(2)]  # type: ignore[arg-type]
    held: list[tuple[Lease, int]] = []
    for key in range(data.draw(st.integers(1, 40))):
        lease = leases[data.draw(st.integers(0, 1))]
        what = data.draw(st.sampled_from(["take", "give", "keep", "find", "forget", "make_room"]))
        if what == "take" and lease.available:
            held += [(lease, first) for first in lease.take(1, "")]
        elif what == "give" and held:
            owner, first = held.pop(data.draw(st.integers(0, len(held) - 1)))
            owner.give([first])
        elif what == "keep" and held:
            pool.keep(key, *data.draw(st.sampled_from(held)))
        elif what == "find" and pool.kept:
            held.append(data.draw(st.sampled_from(list(pool.kept.values()))))
            held[-1][0].share(held[-1][1])
        elif what == "forget":
            pool.forget(data.draw(st.lists(st.integers(0, 40), unique=True)))
        elif what == "make_room":
            count = data.draw(st.integers(0, 12))
            pool.make_room(lease, count)
            used = set(held)
            assert lease.available >= count or all(each in used for each in pool.kept.values())
        users = Counter([*held, *pool.kept.values()])
        assert sum(each.held for each in leases) == len(users)
        owned = {first // 6 for _, first in users}
        for each in leases:
            mine = {f // 6 for owner, f in users if owner is each}
            assert set(each._open) == mine
        assert sorted(pool.free) == sorted(set(range(4)) - owned)
