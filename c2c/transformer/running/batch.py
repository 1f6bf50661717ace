"""Continuous batching over a runner."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from c2c.errors import DataError, SettingError
from c2c.transformer.running.executor import GaveWay, blocks_for
from c2c.transformer.running.runner import Resumable, Runner, Step
from c2c.transformer.running.sampling import Sampling
from c2c.transformer.running.shapes import pieces

__all__ = ["Drawn", "Request", "Served", "serve"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One prompt of a batch, at least one token.

    Attributes:
      stop: end tokens, returned.
      stop_at_eos: whether the checkpoint's end it, too.
    """

    ids: Sequence[int]
    max_new_tokens: int = 32
    sampling: Sampling = field(default_factory=Sampling)
    stop: frozenset[int] = frozenset()
    stop_at_eos: bool = False

    def __post_init__(self) -> None:
        if self.max_new_tokens < 0:
            raise SettingError("max_new_tokens", self.max_new_tokens, "a whole number from 0")

    @property
    def pages(self) -> int:
        """Pages of prompt and answer but the last token."""
        return blocks_for(len(self.ids) + self.max_new_tokens - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """A new token of a request."""

    request: int  # index of the request
    token: int
    last: bool


@dataclass(slots=True)
class Served:
    """Results so far.

    Attributes:
      texts: new tokens of each request.
      ended: times that each request ended.
      fallen: requests begun again without KV cache, in order.
    """

    texts: list[list[int]]
    ended: list[int]
    drawn: tuple[Drawn, ...] = ()
    steps: int = 0
    fallen: list[int] = field(default_factory=list)


# The tokens of a request depend only on its prompt, settings and seed, not on other requests, their
# order or the cache size, except that larger GEMMs sum in another order: rounding can decide
# between two almost equally likely tokens.
def serve(
    runner: Runner,
    requests: Sequence[Request],
    *,
    ends: Callable[[int, int], bool] = lambda request, token: False,  # noqa: ARG005
) -> Iterator[Served]:
    """Serve all requests; yield the results after each step.

    Requests are admitted in order, with a free seat and all pages. Chunks are computed with decodes
    if the shapes mix, else before.

    Args:
      ends: gets request and token; returns whether the request ends.

    Raises:
      OutOfPages: a request beyond the free cache.
    """
    served = Served(texts=[[] for _ in requests], ended=[0] * len(requests))
    waiting = deque(
        (number, Resumable(ids=tuple(request.ids), drawn=0))
        for number, request in enumerate(requests)
        if request.max_new_tokens
    )
    pages = runner.executor.available
    filling = -1  # request in prefill
    chunks: list[int] = []  # of the rest of its prompt
    decoding: dict[int, None] = {}

    def has_room(number: int) -> bool:
        used_pages = sum(requests[index].pages for index in runner.requests)
        fits = used_pages + requests[number].pages <= pages or not runner.requests
        return fits and len(runner.requests) < runner.seats

    while waiting or runner.requests:
        if not chunks and waiting and has_room(waiting[0][0]):
            filling, rest = waiting.popleft()
            request = requests[filling]
            runner.submit(
                filling, rest.ids, new=request.max_new_tokens - rest.drawn,
                sampling=request.sampling, stop=request.stop, drawn=rest.drawn,
            )  # fmt: skip
            chunks = pieces(len(rest.ids), runner.shapes.budgets)
        fill = (filling, chunks[0]) if chunks else None
        if fill is None or runner.shapes.mixes:
            steps = [Step(fill=fill, decode=tuple(decoding))]
        else:
            steps = [Step(fill=fill), *([Step(decode=tuple(decoding))] if decoding else [])]
        for step in steps:
            try:
                result = runner.finish(runner.start(step))
            except GaveWay as gone:  # the step computed nothing
                for number in gone.requests:
                    waiting.appendleft((number, runner.preempt(number)))
                    decoding.pop(number, None)
                    served.fallen.append(number)
                served.drawn = ()
                yield served
                break
            if step.fill is not None:
                del chunks[0]
            drawn = []
            for number, token, why in result.tokens:
                if why == "not_finite":
                    raise DataError(
                        f"request {number}", "its logits are NaN or infinite", "Try another dtype."
                    )
                last = ends(number, token) or why is not None
                if last and why is None:
                    runner.cancel(number)
                drawn.append(Drawn(request=number, token=token, last=last))
                served.texts[number].append(token)
                served.ended[number] += last
                decoding[number] = None
                if last:
                    del decoding[number]
            served.drawn = tuple(drawn)
            served.steps += 1
            yield served
