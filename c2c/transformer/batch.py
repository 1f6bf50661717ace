"""Many requests at once: decode steps of some and chunks of others' prompts in one call.

What a request draws depends on its own prompt, settings and seed alone, not on its neighbours, on
the order of requests or on the room in the cache (beyond rounding: products of more rows are added
up in another order, which can tell apart two tokens that are as good as equally likely).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from c2c.errors import SettingError
from c2c.models import ModelSpec
from c2c.transformer.cache import Cache, new_cache
from c2c.transformer.executables import Executables, Stage
from c2c.transformer.forward import run
from c2c.transformer.generate import CHUNK, PAGE_TOKENS, bucket
from c2c.transformer.linear import Linear
from c2c.transformer.pages import block_tables
from c2c.transformer.params import Params
from c2c.transformer.rope import depends_on_length
from c2c.transformer.sampling import Sampling, SamplingRows, sample, sampling_rows
from c2c.transformer.schedule import Schedule, Size, Step, begin, end, next_step, width_of

__all__ = ["ROWS", "Drawn", "Request", "stream_batch"]

ROWS = 8  # requests at the same time
_LEAST_PAGES = 8  # of a block table: as in generation of one


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One prompt of a batch.

    Attributes:
      ids: the prompt, at least one token.
      max_new_tokens: at most so many.
      sampling: how they are drawn.
      stop: tokens after any of which the request is over (it is returned).
      stop_at_eos: whether the checkpoint's own are among them.
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

    request: int  # its number
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
    """Yield the tokens of all requests as they are drawn; those of each request in order.

    Args:
      params: of the model.
      requests: in the order in which they are admitted.
      spec: the model.
      linear: how projections are multiplied.
      rows: requests at the same time, at most; the others wait.
      cache_tokens: positions that the cache has room for, rounded down to whole pages of 64; by
        default what the largest `rows` requests need. Requests that find no room wait.
      chunk: prompt tokens of one call; models whose rotary frequencies depend on the length take
        a whole prompt.
      ends: is told the request and the token, each once; whether the request is over with it.
      executables: where compiled stages come from; by default jax compiles for this process.

    Raises:
      SettingError: before anything is computed: a size that cannot work, or a request that does
        not fit into an empty cache.
    """
    sizes = {
        number: Size(prompt=len(request.ids), new=request.max_new_tokens)
        for number, request in enumerate(requests)
        if request.max_new_tokens
    }
    if rows < 1:
        raise SettingError("rows", rows, "a whole number above 0")
    rows = min(rows, bucket(max(1, len(sizes))))
    if depends_on_length(spec):  # each prompt in one call, as in generation of one
        chunk = max([chunk, *(width_of(size.prompt) for size in sizes.values())])
    pages = _pages(list(sizes.values()), rows, cache_tokens)
    numbers = tuple(sizes)
    schedule = begin(
        tuple(sizes.values()), rows=rows, chunk=chunk, pages=pages, page_tokens=PAGE_TOKENS
    )
    batch = _Batch(
        params=params,
        requests=[requests[number] for number in numbers],
        spec=spec,
        linear=linear,
        schedule=schedule,
        pages=pages,
        executables=executables,
    )
    return _drawn(batch, numbers, ends)


def _drawn(
    batch: _Batch, numbers: Sequence[int], ends: Callable[[int, int], bool]
) -> Iterator[Drawn]:
    while not batch.schedule.over:
        for request, token in batch.step():
            asked, number = batch.requests[request], numbers[request]
            told = ends(number, token)  # of every token, also where it is the last anyway
            full = len(batch.drawn[request]) == asked.max_new_tokens
            last = told or full or token in asked.stop
            if last:
                batch.end(request)
            yield Drawn(request=number, token=token, last=last)


def _pages(sizes: Sequence[Size], rows: int, cache_tokens: int | None) -> int:
    """Return the pages of the cache; not told, a power of two, so that few shapes are compiled."""
    if cache_tokens is not None:
        if cache_tokens < PAGE_TOKENS:
            raise SettingError(
                "cache_tokens", cache_tokens, f"at least {PAGE_TOKENS}, one page of the cache"
            )
        return cache_tokens // PAGE_TOKENS
    needed = sorted((-(-size.stored // PAGE_TOKENS) for size in sizes), reverse=True)
    return bucket(max(1, sum(needed[:rows])), _LEAST_PAGES)


def _seat(seen: jax.Array, seat: Any, row: Any) -> jax.Array:
    """Return which tokens each seat's sequence holds, with those of a new one."""
    return seen.at[seat].set(row)


def _draw_seats(
    logits: jax.Array,
    seen: jax.Array,
    rows: SamplingRows,
    step: jax.Array,
    seats: jax.Array,
    *,
    hot: bool,
) -> tuple[jax.Array, jax.Array]:
    """Return the next token of each row, and which tokens the seats' sequences hold with it.

    Args:
      logits: float32 [R, vocab].
      seen: bool [seats, vocab].
      rows: settings [R].
      step: int32 [R], how many tokens each row has drawn.
      seats: int32 [R]; of a row that is padding, one that there is not.
      hot: whether any temperature is above 0.
    """
    token = sample(logits, rows, step, jnp.take(seen, seats, axis=0, mode="clip"), hot=hot)
    return token, seen.at[seats, token].set(True, mode="drop")


_SEAT = Stage(name="seat", function=_seat, donated=(0,))
_DRAW_SEATS = Stage(name="draw_seats", function=_draw_seats, donated=(1,), static=("hot",))


class _Batch:
    """The schedule's rows on the device: cache, seats, and what each request has drawn."""

    def __init__(
        self,
        *,
        params: Params,
        requests: Sequence[Request],
        spec: ModelSpec,
        linear: Linear,
        schedule: Schedule,
        pages: int,
        executables: Executables | None,
    ) -> None:
        self.schedule = schedule
        self.requests = requests
        self.drawn: list[list[int]] = [[] for _ in requests]
        self._params, self._spec, self._linear = params, spec, linear
        self._executables = executables
        self._seats: dict[int, int] = {}
        self._pages = pages
        self._state: tuple[Cache, Any] | None = None  # cache and seen, made by the first step

    def step(self) -> list[tuple[int, int]]:
        """Run one call; return the tokens drawn, by request."""
        schedule, step = next_step(self.schedule)
        cache, seen = self._state or self._fresh()
        for chunk in step.chunks:
            if chunk.request not in self._seats:
                seen = self._seated(seen, chunk.request)
        tokens, positions, owners, decode_rows, last = self._laid_out(step)
        table = schedule.table
        width = bucket(max(len(table.owned.get(owner, ())) for owner in owners), _LEAST_PAGES)
        drawing = list(last)  # in the order of their rows
        count = self._padded(len(drawing), step)
        wanted = np.zeros(count, np.int32)
        wanted[: len(drawing)] = [last[request] for request in drawing]
        logits, cache = run(
            self._params,
            tokens,
            positions,
            cache.with_tables(block_tables(table, owners, width)),
            self._spec,
            linear=self._linear,
            decode_rows=decode_rows,
            wanted=wanted,
            executables=self._executables,
        )
        found: list[int] = []
        if drawing:
            token, seen = self._draw(logits, seen, drawing)
            found = [int(each) for each in np.asarray(token)[: len(drawing)]]
        self.schedule, self._state = schedule, (cache, seen)
        for request, each in zip(drawing, found, strict=True):
            self.drawn[request].append(each)
        return list(zip(drawing, found, strict=True))

    def end(self, request: int) -> None:
        """Free what a request holds."""
        self.schedule = end(self.schedule, request)
        del self._seats[request]

    def _compiled(self, stage: Stage) -> Callable[..., Any]:
        return stage.jitted if self._executables is None else self._executables.bind(stage)

    def _fresh(self) -> tuple[Cache, Any]:
        cache = new_cache(
            self._spec,
            pages=self._pages,
            page_tokens=PAGE_TOKENS,
            dtype=self._params.final_norm.dtype,
            executables=self._executables,
        )
        none = np.zeros((self.schedule.rows, self._spec.vocab), bool)
        return cache, jax.device_put(none, jax.devices()[0])

    def _seated(self, seen: Any, request: int) -> Any:
        taken = set(self._seats.values())
        seat = next(each for each in range(self.schedule.rows) if each not in taken)
        self._seats[request] = seat
        row = np.zeros(self._spec.vocab, bool)
        row[np.asarray(self.requests[request].ids)] = True
        return self._compiled(_SEAT)(seen, np.int32(seat), row)

    def _laid_out(
        self, step: Step
    ) -> tuple[np.ndarray, np.ndarray, list[int], int, Mapping[int, int]]:
        """Return tokens and positions, flat, and whose rows they are.

        With chunks there are as many rows of one token as there can be, or none: fewer shapes.

        Returns:
          tokens, positions, the owner of each row (-1 for padding), rows of one token, and where
          the last token of each request that draws one stands.
        """
        chunk_rows = bucket(len(step.chunks)) if step.chunks else 0
        decode_rows = bucket(len(step.decode)) if step.decode else 0
        if chunk_rows and decode_rows:
            decode_rows = bucket(self.schedule.rows)
        width = width_of(step.chunks[0].tokens) if step.chunks else 0
        count = chunk_rows * width + decode_rows
        tokens, positions = np.zeros(count, np.int32), np.full(count, -1, np.int32)
        owners = [-1] * (chunk_rows + decode_rows)
        last: dict[int, int] = {}
        for row, chunk in enumerate(step.chunks):
            first, past = chunk.first, chunk.first + chunk.tokens
            span = slice(row * width, row * width + chunk.tokens)
            tokens[span] = self.requests[chunk.request].ids[first:past]
            positions[span] = np.arange(first, past)
            owners[row] = chunk.request
            if chunk.last:
                last[chunk.request] = span.stop - 1
        for row, request in enumerate(step.decode):
            drawn = self.drawn[request]
            at = chunk_rows * width + row
            tokens[at] = drawn[-1]
            positions[at] = len(self.requests[request].ids) + len(drawn) - 1
            owners[chunk_rows + row] = request
            last[request] = at
        return tokens, positions, owners, decode_rows, last

    def _padded(self, drawing: int, step: Step) -> int:
        """Return the rows of logits: what the shapes of tokens say already, no more shapes."""
        if step.chunks and step.decode:
            return bucket(self.schedule.rows)
        return bucket(max(drawing, len(step.chunks)))

    def _draw(self, logits: Any, seen: Any, drawing: Sequence[int]) -> tuple[Any, Any]:
        rows = logits.shape[0]
        padding = rows - len(drawing)
        settings = [self.requests[request].sampling for request in drawing]
        steps = [len(self.drawn[request]) for request in drawing]
        seats = [self._seats[request] for request in drawing] + [self.schedule.rows] * padding
        found: tuple[Any, Any] = self._compiled(_DRAW_SEATS)(
            logits,
            seen,
            sampling_rows([*settings, *[Sampling()] * padding]),
            np.asarray(steps + [0] * padding, np.int32),
            np.asarray(seats, np.int32),
            hot=any(each.temperature > 0 for each in settings),
        )
        return found
