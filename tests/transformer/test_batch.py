"""Batches: each request's tokens are those it gets alone, whoever else is there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from c2c.errors import SettingError
from c2c.transformer import Executables, KvPool, Model, Request, Runner, Sampling, Shapes, serve
from tests.tiers import tiered

HOT = Sampling(temperature=1.3, top_k=30, top_p=0.9, repetition_penalty=1.2)
# Prompts of up to three chunks, answers that cross a page of 64 positions. Three pages hold three
# of them, or the last and one other.
# Few shapes, since compiling is what these tests take.
SHAPES = {"rows": 4, "chunk": 16, "cache_tokens": 192}
REQUESTS = tuple(
    Request(
        ids=tuple((7 * number + 5 * at * at) % 96 for at in range(length)),
        max_new_tokens=new,
        # Every third is not limited to some tokens: it sorts no vocabulary when alone.
        sampling=replace(HOT, seed=number, **({} if number % 3 else {"top_k": 0, "top_p": 1.0})),
    )
    for number, (length, new) in enumerate([(5, 9), (40, 6), (1, 12), (33, 1), (9, 0), (40, 30)])
)
Kept = Callable[[str], tuple[Model, list[list[int]]]]


@pytest.fixture(scope="module")
def kept(made: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> Kept:
    """Family -> a model with executables of its own, and what it draws for each request alone."""

    @cache
    def make(family: str) -> tuple[Model, list[list[int]]]:
        folder = tmp_path_factory.mktemp("kept")
        folder.chmod(0o700)
        model = replace(made(family)[0], executables=Executables(folder / "repository"))
        return model, [model.generate_batch([request], chunk=16)[0] for request in REQUESTS]

    return make


@pytest.mark.slow
@settings(max_examples=15)
@given(order=st.permutations(range(len(REQUESTS))), count=st.integers(1, len(REQUESTS)))
def test_order_company_and_room_make_no_difference(
    kept: Kept, order: list[int], count: int
) -> None:
    model, expected = kept("llama")
    chosen = order[:count]
    found: dict[int, list[int]] = {at: [] for at in range(count)}
    over: set[int] = set()
    for drawn in model.stream_batch([REQUESTS[number] for number in chosen], **SHAPES):
        assert drawn.request not in over
        found[drawn.request].append(drawn.token)
        if drawn.last:
            over.add(drawn.request)
    assert [found[at] for at in range(count)] == [expected[number] for number in chosen]
    assert over == {at for at, number in enumerate(chosen) if expected[number]}


@pytest.mark.parametrize("mixes", [True, False])
def test_requests_are_admitted_in_order_with_all_their_pages(kept: Kept, mixes: bool) -> None:
    model, expected = kept("llama")
    pool = KvPool.for_one(model.spec, 3, dtype="float32", executables=model.executables)
    shapes = Shapes(rows=(1, 4), budgets=(16,), width=8, mixes=mixes)
    runner, admitted = Runner(model.executor(pool), shapes), [-1]
    for served in serve(runner, REQUESTS):
        assert sum(REQUESTS[number].pages for number in runner.requests) <= 3
        admitted += [number for number in runner.requests if number > admitted[-1]]
        assert {*runner.requests, *(each.request for each in served.drawn)} <= {*admitted}
    assert served.texts == expected
    assert served.ended == [bool(text) for text in expected]
    assert len(pool.free) == pool.superblocks == 3


@pytest.mark.slow
def test_experts_see_no_padding(kept: Kept) -> None:
    """Rows of a mixture of experts share one grouped product: the one place where they meet."""
    model, expected = kept("mixtral")
    assert model.generate_batch(REQUESTS[:3], **(SHAPES | {"rows": 2})) == expected[:3]
    assert len({tuple(answer) for answer in expected}) == len(REQUESTS)


def test_requests_end_by_stops_of_their_own(kept: Kept) -> None:
    model, answers = kept("llama")
    request, expected = REQUESTS[5], answers[5]
    stop = expected[4]
    until = expected[: expected.index(stop) + 1]
    small = replace(request, max_new_tokens=10)
    asked = [replace(small, stop=frozenset([stop])), replace(small, stop_at_eos=True), small]
    ending = replace(model, eos_ids=(stop,))
    assert ending.generate_batch(asked, **SHAPES) == [until, until, expected[:10]]
    told = ending.generate_batch(
        [small, small], **SHAPES, ends=lambda number, token: number == 1 and token == stop
    )
    assert told == [expected[:10], until]


def test_another_process_would_compile_nothing(kept: Kept) -> None:
    model, expected = kept("llama")
    assert model.executables is not None
    assert model.generate_batch(REQUESTS, **SHAPES) == expected
    again = replace(model, executables=Executables(model.executables.repository.folder))
    assert again.generate_batch(REQUESTS, **SHAPES) == expected
    assert again.executables is not None
    assert again.executables.compiled == 0 < again.executables.loaded


def test_what_cannot_work_is_refused_before_anything_runs(kept: Kept) -> None:
    model = kept("llama")[0]
    with pytest.raises(SettingError, match=r"at most 129"):
        model.stream_batch([Request(ids=[1] * 90, max_new_tokens=40)], cache_tokens=128)
    for wrong, name in (
        ({"rows": 0}, "rows"),
        ({"cache_tokens": 63}, "cache_tokens"),
        ({"chunk": 24}, "chunk"),
    ):
        with pytest.raises(SettingError, match=name):
            model.stream_batch(REQUESTS, **wrong)
    with pytest.raises(SettingError, match="max_new_tokens"):
        Request(ids=[1], max_new_tokens=-1)
    with pytest.raises(SettingError, match="ids"):
        model.stream_batch([Request(ids=[96])])
    assert model.generate_batch([]) == []


@pytest.mark.slow
@pytest.mark.parametrize("family", tiered(["dynamic", "longrope"]))
def test_prompts_whose_length_matters_are_not_cut(family: str, made: Callable[..., Any]) -> None:
    """Chunks of 16, prompts of 40 and 33, which change frequencies from 18 positions on."""
    model = replace(made(family)[0], executables=None)
    asked = [REQUESTS[number] for number in (1, 3, 5)]
    expected = [model.generate(r.ids, 6) for r in asked]
    greedy = [replace(r, sampling=Sampling(), max_new_tokens=6) for r in asked]
    assert model.generate_batch(greedy, rows=2, chunk=16) == expected
