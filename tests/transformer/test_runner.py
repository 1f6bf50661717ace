"""The runner: what it draws is what a request draws alone, whatever steps it is given."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest

from c2c.engine.messages import Fill, Run, Setup, Submit
from c2c.engine.residents import Residents
from c2c.errors import SettingError
from c2c.transformer import Executables, Model, Sampling
from c2c.transformer.layers.pages import OutOfPages
from c2c.transformer.running.kv_pool import KvPool, superblock_elements
from c2c.transformer.running.runner import Runner, Step
from c2c.transformer.running.sampling import sampling_rows
from c2c.transformer.running.sampling_stages import BIASED, DRAW, MOST_HELD, new_seats
from c2c.transformer.running.shapes import Shapes, pieces
from tests.compilations import compilations
from tests.tiers import tiered

SHAPES = Shapes(rows=(1, 4), budgets=(16, 64), width=4)
HOT = Sampling(temperature=1.1, top_k=30, repetition_penalty=1.2, seed=5)
PENALISED = Sampling(
    presence_penalty=0.7, frequency_penalty=0.4, repetition_penalty=1.1,
    logit_bias={4: 1.5, 17: -100.0, 60: 0.5},
)  # fmt: skip
# prompt, tokens at most, how they are drawn
ASKED = [
    (
        [(7 * k + 3 * at * at) % 96 for at in range(length)],
        new,
        HOT if k % 2 else PENALISED if k == 2 else Sampling(),
    )
    for k, (length, new) in enumerate([(5, 12), (70, 9), (33, 40), (1, 70), (90, 5), (17, 33)])
]
Warm = tuple[Runner, list[list[int]]]


@pytest.fixture(scope="module")
def two(made: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> list[Warm]:
    """Runners of two unlike models over one pool, all shapes ready; and what they draw alone."""
    folder = tmp_path_factory.mktemp("runner")
    executables = Executables(folder / "repository")
    models: list[Model] = [made("llama")[0], made("qwen3")[0]]
    models = [replace(model, executables=executables) for model in models]
    size = superblock_elements((m.spec for m in models), blocks=2)
    pool = KvPool(8, size, dtype="float32", executables=executables)
    runners = [Runner(m.executor(pool), SHAPES) for m in models]
    for runner in runners:
        runner.warm()
    texts = [
        [
            m.generate(
                ids, new, **{f.name: getattr(s, f.name) for f in fields(Sampling)},
            )
            for ids, new, s in ASKED
        ]
        for m in models
    ]  # fmt: skip
    return list(zip(runners, texts, strict=True))


class Client:
    """Gives a runner steps at random: chunks of any size, any rows, preemption, one step ahead.

    By odd seeds it also has steps begun that it then asks for in parts, late, or not at all.
    """

    def __init__(self, runner: Runner, seed: int, ahead: int) -> None:
        self.runner, self.random, self.ahead = runner, random.Random(seed), ahead
        self.is_early, self.early = bool(seed % 2), 0
        self.got: list[list[int]] = [[] for _ in ASKED]
        self.waiting = list(range(len(ASKED)))
        self.left: dict[int, int] = {}  # of prompts under way
        self.owed: dict[int, int] = {}  # draws that may still be started
        self.under_way: list[Any] = []
        self.preempted = 0

    @property
    def over(self) -> bool:
        return not (self.waiting or self.left or self.owed or self.under_way)

    def admit(self) -> None:
        while self.waiting and len(self.runner.requests) < self.runner.seats:
            k = self.waiting.pop(0)
            ids, new, sampling = ASKED[k]
            known = [*ids, *self.got[k]]
            self.runner.submit(
                k, known, new=new - len(self.got[k]), sampling=sampling, drawn=len(self.got[k])
            )
            self.left[k], self.owed[k] = len(known), new - len(self.got[k])

    def step(self) -> None:
        self.admit()
        filling = [k for k, left in self.left.items() if left]
        ready = [k for k, owed in self.owed.items() if owed and not self.left.get(k)]
        fill = None
        if filling and self.random.random() < 0.7:
            k = self.random.choice(filling)
            fill = k, self.random.randint(1, min(64, self.left[k]))
        decode = tuple(k for k in ready if self.random.random() < 0.8)[: self.runner.seats]
        step = Step(fill=fill, decode=decode)
        while (fill or decode) and self.runner.missing(step):
            others = [k for k in self.runner.requests if fill is None or k != fill[0]]
            if not others:
                raise AssertionError("one request alone must fit")
            self.preempt(self.random.choice(others))
            decode = tuple(k for k in decode if k in self.runner.requests)
            step = Step(fill=fill, decode=decode)
        if fill or decode:
            self.under_way.append(self.runner.start(step))
            for k in decode:
                self.owed[k] -= 1
            if fill is not None:
                self.left[fill[0]] -= fill[1]
                if not self.left[fill[0]]:
                    self.owed[fill[0]] -= 1
            if self.is_early and self.random.random() < 0.7:
                some = [k for k in self.runner.requests if self.owed[k] and not self.left[k]]
                some = [k for k in some if self.random.random() < 0.8]
                self.early += bool(some) and self.runner.run_ahead(Step(decode=tuple(some)))
        while len(self.under_way) > (self.ahead if fill or decode else 0):
            self.read()
        if self.runner.requests and self.random.random() < 0.1:
            self.preempt(self.random.choice(self.runner.requests))

    def read(self) -> None:
        for k, token, ended in self.runner.finish(self.under_way.pop(0)).tokens:
            self.got[k].append(token)
            if ended is not None:
                del self.left[k], self.owed[k]

    def preempt(self, k: int) -> None:
        kept = self.runner.preempt(k)
        assert kept.ids == (*ASKED[k][0], *self.got[k])
        assert kept.drawn == len(self.got[k])
        del self.left[k], self.owed[k]
        self.waiting.append(k)
        self.preempted += 1


@pytest.mark.parametrize("ahead", tiered([0, 1], 1))
def test_any_steps_in_turns_over_one_pool_draw_the_same(two: list[Warm], ahead: int) -> None:
    pool = two[0][0].executor.pool
    preempted = early = 0
    for seed in range(3):
        clients = [Client(runner, seed, ahead) for runner, _ in two]
        with compilations(traced=True) as events:
            while not all(client.over for client in clients):
                for client in clients:
                    if not client.over:
                        client.step()
        assert events == [], "everything was ready"
        for client, (_, texts) in zip(clients, two, strict=True):
            assert client.got == texts
            preempted += client.preempted
            early += client.early
        assert sorted(pool.free) == list(range(pool.superblocks))
    assert preempted > 5
    assert early > 5


def test_a_step_begun_ahead_is_told_when_it_is_asked_for(two: list[Warm]) -> None:
    runner, texts = two[0]
    for k in (0, 2, 4):
        ids, new, sampling = ASKED[k]
        stop = {texts[k][1]} if k == 4 else set()
        runner.submit(k, ids, new=3 if k == 2 else new, sampling=sampling, stop=stop)
        for at in range(0, len(ids), 64):
            runner.finish(runner.start(Step(fill=(k, min(64, len(ids) - at)))))
    all_ = Step(decode=(0, 2, 4))
    ticket = runner.start(all_)
    assert runner.run_ahead(all_)
    assert not runner.run_ahead(all_), "what was begun is not asked for yet"
    assert sorted(runner.finish(ticket).tokens) == [
        (k, texts[k][1], "stop" if k == 4 else None) for k in (0, 2, 4)
    ]
    step = Step(decode=(2,))
    assert runner.attended(step) == len(ASKED[2][0]) + 2
    ticket = runner.start(step)
    assert not runner.run_ahead(Step(decode=(2,))), "it has all its tokens"
    result = runner.finish(ticket)
    assert (result.tokens, result.dropped) == (((2, texts[2][2], "length"),), 1)
    for at in (2, 3):  # the first of them was begun with the others
        (token,) = runner.finish(runner.start(Step(decode=(0,)))).tokens
        assert token == (0, texts[0][at], None)
    runner.cancel(0)
    assert runner.executor.lease.held == 0


def test_cancelled_requests_free_their_pages_and_leave_no_token(two: list[Warm]) -> None:
    runner, texts = two[0]
    ids, new, sampling = ASKED[1]
    runner.submit(1, ids, new=new, sampling=sampling)
    tickets = [runner.start(Step(fill=(1, n))) for n in (64, 6)]
    tickets.append(runner.start(Step(decode=(1,))))
    runner.cancel(1)
    assert runner.executor.lease.held == 0
    runner.submit(1, ids[:9], new=3, sampling=sampling)  # another stay of the same number
    assert [runner.finish(ticket).tokens for ticket in tickets] == [(), (), ()]
    runner.cancel(1)
    runner.submit(1, ids, new=new, sampling=sampling, stop={texts[1][2]})
    found = [runner.finish(runner.start(Step(fill=(1, n)))) for n in (64, 6)]
    found += [runner.finish(runner.start(Step(decode=(1,)))) for _ in range(2)]
    assert [t for result in found for t in result.tokens][-1] == (1, texts[1][2], "stop")
    assert runner.requests == ()


@pytest.mark.parametrize("over", [(), (1,), (2,), (1, 2)])
def test_a_plan_goes_on_when_a_request_ends_in_one_of_a_steps_calls(
    two: list[Warm], over: tuple[int, ...]
) -> None:
    """Calls that follow a loss: a new process computes anew what the lost one held."""
    runner, texts = two[0]
    asked = {1: ASKED[0], 2: ASKED[2]}  # by number
    first = {1: texts[0][0], 2: texts[2][0]}
    setup = Setup(
        models=(), dtype="float32", linear="reference", executables=None, rows=SHAPES.rows,
        budgets=SHAPES.budgets, width=SHAPES.width, superblocks=1, superblock=64, ahead=1,
    )  # fmt: skip
    residents = Residents(setup)
    residents._runners[0] = runner
    submits = tuple(
        Submit(
            request=n, ids=tuple(ids), new=8, drawn=0, stop=(first[n],) if n in over else (),
            **{f.name: getattr(s, f.name) for f in fields(Sampling)},
        )
        for n, (ids, _, s) in asked.items()
    )  # fmt: skip
    fills = tuple(Fill(request=s.request, tokens=len(s.ids)) for s in submits)
    run = Run(plan=1, instance=0, submits=submits, fills=fills, decodes=(), steps=3)
    found = list(residents.run(run, lambda: False))
    assert len(found) == (1 if over else 3)
    ends = dict.fromkeys(over, "stop")
    assert found[0].tokens == tuple((n, token, ends.get(n)) for n, token in first.items())
    residents.free((1, 2))
    assert runner.executor.lease.held == 0


def test_scores_are_log_probabilities_and_stop_tokens_can_wait(
    two: list[Warm], made: Callable[..., Any]
) -> None:
    runner, texts = two[0]
    model: Model = made("llama")[0]
    ids, _, sampling = ASKED[0]
    with compilations(traced=True) as events:
        runner.submit(0, ids, new=4, sampling=sampling, scores=3)
        runner.submit(1, ids, new=4, sampling=sampling, stop={texts[0][0]}, least=2)
        found = [runner.finish(runner.start(Step(fill=(0, len(ids)))))]
        found.append(runner.finish(runner.start(Step(fill=(1, len(ids))))))
        found += [runner.finish(runner.start(Step(decode=(0, 1)))) for _ in range(3)]
    assert events == []
    logits = model.logits([*ids, *texts[0][:3]])[-4:]
    told = [result.scores[0] for result in found if 0 in result.scores]
    for row, token, score in zip(logits, texts[0][:4], told, strict=True):
        expected = row - row.max() - np.log(np.exp(row - row.max()).sum())
        assert score.logprob == pytest.approx(expected[token], abs=1e-5)
        best = np.argsort(-expected)[:3]
        assert [which for which, _ in score.top] == best.tolist()
        np.testing.assert_allclose([value for _, value in score.top], expected[best], atol=1e-5)
    drawn = [token for result in found for k, token, _ in result.tokens if k == 1]
    assert texts[0][0] not in drawn[:2]
    assert drawn[0] == int(np.argsort(-logits[0])[1])
    assert all(1 not in result.scores for result in found)
    if 1 in runner.requests:
        runner.cancel(1)


def test_penalties_and_biases_are_those_of_the_formula(
    two: list[Warm], made: Callable[..., Any]
) -> None:
    """Other draws of this setting are held to these: token by token from the model's logits."""
    model: Model = made("llama")[0]
    ids, new, s = ASKED[2]
    seen, answer = list(ids), [0] * model.spec.vocab
    for token in two[0][1][2]:
        logits = model.logits(seen)[-1].astype(np.float64)
        for at, bias in s.logit_bias.items():
            logits[at] += bias
        held = sorted(set(seen))
        logits[held] *= np.where(logits[held] > 0, 1 / s.repetition_penalty, s.repetition_penalty)
        logits -= s.frequency_penalty * np.array(answer)
        logits -= s.presence_penalty * (np.array(answer) > 0)
        assert logits[token] > logits.max() - 1e-4
        seen.append(token)
        answer[token] += 1
    assert len(seen) == len(ids) + new
    assert max(answer) > 1


def test_biases_beyond_what_a_seat_holds_are_refused(two: list[Warm]) -> None:
    runner = two[0][0]
    many = Sampling(logit_bias=dict.fromkeys(range(BIASED), 1.0))
    runner.submit(0, [1], new=1, sampling=many)
    runner.cancel(0)
    with pytest.raises(SettingError, match="logit_bias"):
        runner.submit(0, [1], new=1, sampling=many, stop=[3], least=1)
    assert runner.requests == ()


def test_a_count_that_is_full_stays_full() -> None:
    seats = replace(new_seats(2, 5), held=np.full((2, 5), MOST_HELD - 2, np.int16))
    logits = np.array([[0, 1, 0, 0, 0]], np.float32)
    rows = sampling_rows([Sampling()])
    for _ in range(3):
        _, seats = DRAW.jitted(logits, seats, rows, np.array([[0, 1, 0, 0]], np.int32), hot=False)
    held = np.asarray(seats.held)
    assert held[1].tolist() == [MOST_HELD - 2, MOST_HELD, *[MOST_HELD - 2] * 3]
    assert (held[0] == MOST_HELD - 2).all()


def test_prompts_are_scored_whatever_they_are_cut_into(
    two: list[Warm], made: Callable[..., Any]
) -> None:
    runner, texts = two[0]
    model: Model = made("llama")[0]
    ids, _, sampling = ASKED[4]
    logits = model.logits(ids).astype(np.float64)
    expected = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    for cut in ([90], [1, 1, 16, 60, 12]):
        runner.submit(1, ASKED[1][0], new=9, sampling=HOT)
        runner.finish(runner.start(Step(fill=(1, 64))))
        runner.finish(runner.start(Step(fill=(1, 6))))
        runner.submit(0, ids, new=2, sampling=sampling, prompt_scores=3)
        told: list[Any] = []
        with compilations(traced=True) as events:
            for count in (part for whole in cut for part in pieces(whole, SHAPES.budgets)):
                result = runner.finish(runner.start(Step(fill=(0, count), decode=(1,))))
                for request, first, scores in result.prompts:
                    assert (request, first) == (0, len(told) + 1)
                    told += scores
        assert events == []
        assert (0, texts[4][0], None) in result.tokens
        assert len(told) == len(ids) - 1
        for at, score in enumerate(told):
            assert score.logprob == pytest.approx(expected[at][ids[at + 1]], abs=1e-4)
            assert [which for which, _ in score.top] == np.argsort(-expected[at])[:3].tolist()
        assert not runner.finish(runner.start(Step(decode=(0,)))).prompts
        runner.cancel(1)


@pytest.mark.slow
def test_a_step_that_lacks_pages_says_so_and_changes_nothing(two: list[Warm]) -> None:
    runner, texts = two[0]
    other = two[1][0]
    taken = other.executor.lease.take(other.executor.lease.available, "all")
    ids, new, sampling = ASKED[0]
    runner.submit(0, ids, new=new, sampling=sampling)
    step = Step(fill=(0, len(ids)))
    assert runner.missing(step) == 1
    with pytest.raises(OutOfPages, match="1 more pages, 0 are free"):
        runner.start(step)
    other.executor.lease.give(taken)
    result = runner.finish(runner.start(step))
    assert result.tokens == ((0, texts[0][0], None),)
    with pytest.raises(ValueError, match="is already present"):
        runner.submit(0, ids, new=new, sampling=sampling)
    runner.cancel(0)
    for wrong in (Step(fill=(0, 65)), Step(decode=(0,) * 5)):
        runner.submit(0, ids * 20, new=new, sampling=sampling)
        with pytest.raises(ValueError, match="expected a step that fits"):
            runner.start(wrong)
        runner.cancel(0)
