"""Serving loop over a runner, step by step, that computes preempted requests again."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from c2c.transformer import Runner, Sampling, Step
from c2c.transformer.woven import GaveWay

__all__ = ["Asked", "Served", "asked_by", "serve"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """Request: token ids of its prompt, and number of new tokens."""

    ids: tuple[int, ...]
    new: int


@dataclass(slots=True)
class Served:
    """Results so far.

    Attributes:
      texts: new tokens of each request.
      ended: number of times that each request ended.
      steps: number of steps that were computed.
      fallen: requests that lost their KV cache and began again, in order.
    """

    texts: list[list[int]]
    ended: list[int]
    steps: int = 0
    fallen: list[int] = field(default_factory=list)


@dataclass(slots=True)
class _Waiting:
    request: int
    ids: tuple[int, ...]
    drawn: int = 0


def asked_by(count: int, *, prompt: int, new: int, vocab: int, seed: int) -> list[Asked]:
    """Return `count` requests of random tokens and lengths, from 1 to `prompt` and `new` tokens."""
    g = np.random.default_rng(seed)
    return [
        Asked(
            ids=tuple(g.integers(0, vocab, int(g.integers(1, prompt + 1))).tolist()),
            new=int(g.integers(1, new + 1)),
        )
        for _ in range(count)
    ]


def serve(runner: Runner, asked: Sequence[Asked]) -> Iterator[Served]:
    """Serve all requests; yield the results after each step.

    A chunk of a prompt is computed with all decodes if the runner's shapes mix, else before them.

    Args:
      runner: runner without requests.
      asked: requests, admitted as seats are free.
    """
    served = Served(texts=[[] for _ in asked], ended=[0] * len(asked))
    waiting = deque(_Waiting(n, each.ids) for n, each in enumerate(asked))
    filling: tuple[int, int] | None = None  # the request, and the tokens left of its prompt
    decoding: dict[int, None] = {}
    while waiting or runner.requests:
        if filling is None and waiting and len(runner.requests) < runner.seats:
            come = waiting.popleft()
            new = asked[come.request].new - come.drawn
            runner.submit(come.request, come.ids, new=new, sampling=Sampling(), drawn=come.drawn)
            filling = come.request, len(come.ids)
        steps = [Step(decode=tuple(decoding))] if decoding else []
        if filling is not None:
            fill = filling[0], min(filling[1], runner.shapes.budgets[-1])
            if runner.shapes.mixes:
                steps = [Step(fill=fill, decode=tuple(decoding))]
            else:
                steps.insert(0, Step(fill=fill))
        for step in steps:
            try:
                result = runner.finish(runner.start(step))
            except GaveWay as gone:
                for request in gone.requests:
                    rest = runner.preempt(request)
                    waiting.appendleft(_Waiting(request, rest.ids, rest.drawn))
                    decoding.pop(request, None)
                    served.fallen.append(request)
                yield served
                break  # the step computed nothing
            if step.fill is not None and filling is not None:
                left = filling[1] - step.fill[1]
                filling = (filling[0], left) if left else None
            for request, token, ended in result.tokens:
                served.texts[request].append(token)
                decoding[request] = None
                if ended is not None:
                    del decoding[request]
                    served.ended[request] += 1
            served.steps += 1
            yield served
