"""Continuous batching: decode steps and prompt chunks of many requests in one call.

The tokens of a request depend only on its prompt, settings and seed, not on other requests, their
order or the cache size. Rounding is an exception: larger GEMMs sum in another order, which can
decide between two almost equally likely tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from c2c.errors import SettingError
from c2c.models import ModelSpec
from c2c.transformer.executables import Executables
from c2c.transformer.executor import OnDevice
from c2c.transformer.generate import CHUNK, budgets_for
from c2c.transformer.kv_pool import KvPool, block_elements, check_room
from c2c.transformer.linear import Linear
from c2c.transformer.pages import PAGE_TOKENS
from c2c.transformer.params import Params
from c2c.transformer.runner import Runner, Step
from c2c.transformer.sampling import Sampling
from c2c.transformer.schedule import Schedule, Size, begin, end, next_step
from c2c.transformer.shapes import Shapes, bucket, pieces

__all__ = ["ROWS", "Drawn", "Request", "stream_batch"]

ROWS = 8  # concurrent requests
_LEAST_PAGES = 8  # of a block table: as in generation of one


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One prompt of a batch.

    Attributes:
      ids: the prompt, at least one token.
      max_new_tokens: maximum number of new tokens.
      sampling: sampling settings.
      stop: tokens that end the request; the stop token is returned.
      stop_at_eos: whether the checkpoint's end-of-sequence tokens are stop tokens too.
    """

    ids: Sequence[int]
    max_new_tokens: int = 32
    sampling: Sampling = field(default_factory=Sampling)
    stop: frozenset[int] = frozenset()
    stop_at_eos: bool = False

    def __post_init__(self) -> None:
        if self.max_new_tokens < 0:
            raise SettingError("max_new_tokens", self.max_new_tokens, "a whole number from 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """A new token of a request."""

    request: int  # index of the request
    token: int
    last: bool


def stream_batch(
    params: Params,
    requests: Sequence[Request],
    spec: ModelSpec,
    linear: Linear,
    *,
    rows: int = ROWS,
    cache_tokens: int | None = None,
    chunk: int = CHUNK,
    ends: Callable[[int, int], bool] = lambda request, token: False,  # noqa: ARG005
    executables: Executables | None = None,
) -> Iterator[Drawn]:
    """Yield the tokens of all requests as they are drawn, in order within a request.

    Args:
      params: parameters of the model.
      requests: requests in the order of admission.
      spec: the model.
      linear: strategy for projections.
      rows: maximum number of concurrent requests; the others wait.
      cache_tokens: positions in the cache, rounded down to whole pages of 64; by default enough for
        the largest `rows` requests. Requests that do not fit wait.
      chunk: maximum prompt tokens of one call; models whose rotary frequencies depend on the length
        compute a prompt in one call.
      ends: called once with each request and token; returns whether the request ends with it.
      executables: source of compiled stages; by default jax compiles for this process.

    Raises:
      SettingError: before any computation, if a size is invalid or a request does not fit into an
        empty cache.
    """
    sizes = {
        number: Size(prompt=len(request.ids), new=request.max_new_tokens)
        for number, request in enumerate(requests)
        if request.max_new_tokens
    }
    if rows < 1:
        raise SettingError("rows", rows, "a whole number above 0")
    rows = min(rows, bucket(max(1, len(sizes))))
    budgets = budgets_for(spec, max((size.prompt for size in sizes.values()), default=1), chunk)
    pages = _pages(list(sizes.values()), rows, cache_tokens)
    nbytes = 2 * pages * block_elements(spec) * params.dtype.itemsize
    check_room(nbytes, device=params.device)
    numbers = tuple(sizes)
    schedule = begin(
        tuple(sizes.values()), rows=rows, chunk=budgets[-1], pages=pages, page_tokens=PAGE_TOKENS
    )
    longest = max((-(-size.stored // PAGE_TOKENS) for size in sizes.values()), default=1)
    classes = (1, rows) if rows > 1 else (1,)
    shapes = Shapes(rows=classes, budgets=budgets, width=bucket(longest, _LEAST_PAGES))
    batch = _Batch(
        requests=[requests[number] for number in numbers],
        schedule=schedule,
        made=lambda: Runner(
            OnDevice(
                params,
                spec,
                linear,
                KvPool.for_one(
                    spec, pages, dtype=params.dtype, executables=executables, device=params.device
                ),
                executables=executables,
            ),
            shapes,
        ),
    )
    return _drawn(batch, numbers, ends)


def _drawn(
    batch: _Batch, numbers: Sequence[int], ends: Callable[[int, int], bool]
) -> Iterator[Drawn]:
    while not batch.schedule.over:
        for request, token, is_over in batch.step():
            number = numbers[request]
            told = ends(number, token)  # of every token, also where it is the last anyway
            last = told or is_over
            if last:
                batch.end(request)
            yield Drawn(request=number, token=token, last=last)


def _pages(sizes: Sequence[Size], rows: int, cache_tokens: int | None) -> int:
    """Return the number of cache pages; by default a power of two, to limit compiled shapes."""
    if cache_tokens is not None:
        if cache_tokens < PAGE_TOKENS:
            raise SettingError(
                "cache_tokens", cache_tokens, f"at least {PAGE_TOKENS}, one page of the cache"
            )
        return cache_tokens // PAGE_TOKENS
    needed = sorted((-(-size.stored // PAGE_TOKENS) for size in sizes), reverse=True)
    return bucket(max(1, sum(needed[:rows])), _LEAST_PAGES)


class _Batch:
    """A schedule and the runner that computes its steps."""

    def __init__(
        self, *, requests: Sequence[Request], schedule: Schedule, made: Callable[[], Runner]
    ) -> None:
        self.requests = requests
        self.schedule = schedule
        self._made = made
        self._runner: Runner | None = None  # with its cache, made by the first step

    def step(self) -> list[tuple[int, int, bool]]:
        """Compute the schedule's next step; return request, token and whether it was the last."""
        schedule, step = next_step(self.schedule)
        runner = self._runner = self._runner or self._made()
        calls: list[Step] = []
        for chunk in step.chunks:
            if chunk.first == 0:
                asked = self.requests[chunk.request]
                runner.submit(
                    chunk.request,
                    asked.ids,
                    new=asked.max_new_tokens,
                    sampling=asked.sampling,
                    stop=asked.stop,
                )
            cut = pieces(chunk.tokens, runner.shapes.budgets)
            calls += [Step(fill=(chunk.request, tokens)) for tokens in cut]
        first = calls[0].fill if calls else None
        found: list[tuple[int, int, bool]] = []
        for call in (Step(fill=first, decode=step.decode), *calls[1:]):
            result = runner.finish(runner.start(call))
            found += [(request, token, why is not None) for request, token, why in result.tokens]
        self.schedule = schedule
        return found

    def end(self, request: int) -> None:
        """Free the cache and row of a request."""
        self.schedule = end(self.schedule, request)
        assert self._runner is not None  # it ran there
        if request in self._runner.requests:  # told that it is over, before the runner knew
            self._runner.cancel(request)
