"""Continuous-batching schedule as pure functions: tokens of each request in the next call.

Requests wait in order. One is admitted when a row and all pages of its prompt and answer are free,
so that running requests are never preempted. Every call then computes a chunk of new prompts and
one token of each decoding request.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from c2c.errors import SettingError
from c2c.transformer.pages import PageTable, can_hold, empty, hold, release

__all__ = ["Chunk", "Schedule", "Size", "Step", "begin", "end", "next_step", "width_of"]

_LEAST_WIDTH = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """Token counts of a request: its prompt and its maximum of new ones."""

    prompt: int
    new: int

    @property
    def stored(self) -> int:
        """Positions with stored keys and values: all tokens but the last."""
        return self.prompt + self.new - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """A part of a request's prompt."""

    request: int
    first: int
    tokens: int
    last: bool  # whether the prompt ends here, so that a token is drawn


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One call: chunks padded to one width, and requests that decode one token."""

    chunks: tuple[Chunk, ...]
    decode: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """State of a schedule. A request is waiting, in prefill, running or over.

    Attributes:
      sizes: sizes of all requests; a request's id is its index.
      rows: maximum number of concurrent requests.
      chunk: maximum prompt tokens of one call, padding included.
      table: page table.
      waiting: requests without pages, in order.
      filling: requests in prefill, with the number of computed tokens.
      running: requests that draw a token in each call.
    """

    sizes: tuple[Size, ...]
    rows: int
    chunk: int
    table: PageTable
    waiting: tuple[int, ...]
    filling: tuple[tuple[int, int], ...] = ()
    running: tuple[int, ...] = ()

    @property
    def over(self) -> bool:
        """True if all requests are over."""
        return not (self.waiting or self.filling or self.running)


def width_of(tokens: int) -> int:
    """Return the padded width of a chunk.

    >>> [width_of(n) for n in (1, 16, 17, 200)]
    [16, 16, 32, 256]
    """
    return max(_LEAST_WIDTH, 1 << (tokens - 1).bit_length())


def begin(
    sizes: Sequence[Size], *, rows: int, chunk: int, pages: int, page_tokens: int
) -> Schedule:
    """Return a schedule in which all requests wait.

    Args:
      sizes: sizes of the requests.
      rows: maximum number of concurrent requests.
      chunk: maximum prompt tokens of one call; a power of two from 16.
      pages: number of pages in the cache.
      page_tokens: positions per page.

    Raises:
      SettingError: a size is invalid, or a request does not fit into an empty cache.
    """
    if rows < 1:
        raise SettingError("rows", rows, "a whole number above 0")
    if chunk < 1 or chunk != width_of(chunk):
        raise SettingError("chunk", chunk, f"a power of two from {_LEAST_WIDTH}")
    table = empty(pages, page_tokens)
    for number, size in enumerate(sizes):
        if size.prompt < 1 or size.new < 1:
            raise SettingError(f"requests[{number}]", size, "at least one token of each kind")
        if not can_hold(table, number, size.stored):
            raise SettingError(
                f"requests[{number}]",
                f"{size.prompt} + {size.new} tokens",
                f"at most {pages * page_tokens + 1} together, the size of the cache",
                "Request fewer new tokens or a larger cache.",
            )
    return Schedule(
        sizes=tuple(sizes), rows=rows, chunk=chunk, table=table, waiting=tuple(range(len(sizes)))
    )


def next_step(schedule: Schedule) -> tuple[Schedule, Step]:
    """Admit requests that fit; return the next step and the schedule after it.

    Each request that draws a token in the step is running afterwards, until `end` is called for it.

    Raises:
      ValueError: all requests are over.
    """
    if schedule.over:
        raise ValueError("schedule: expected a request that is not over")
    schedule = _admitted(schedule)
    chunks = _chunks(schedule)
    done = {chunk.request: chunk.first + chunk.tokens for chunk in chunks}
    ready = tuple(chunk.request for chunk in chunks if chunk.last)
    filling = tuple(
        (request, done.get(request, before))
        for request, before in schedule.filling
        if request not in ready
    )
    step = Step(chunks=chunks, decode=schedule.running)
    return replace(schedule, filling=filling, running=(*schedule.running, *ready)), step


def end(schedule: Schedule, request: int) -> Schedule:
    """Return the schedule after the end of a running request, with its pages freed.

    Raises:
      ValueError: the request is not running.
    """
    if request not in schedule.running:
        raise ValueError(f"request={request}: expected one of {schedule.running}, which run")
    return replace(
        schedule,
        running=tuple(each for each in schedule.running if each != request),
        table=release(schedule.table, request),
    )


def _admitted(schedule: Schedule) -> Schedule:
    """Admit requests in order, without overtaking."""
    waiting, filling, table = schedule.waiting, schedule.filling, schedule.table
    while waiting and len(filling) + len(schedule.running) < schedule.rows:
        request = waiting[0]
        if not can_hold(table, request, schedule.sizes[request].stored):
            break
        table = hold(table, request, schedule.sizes[request].stored)
        waiting, filling = waiting[1:], (*filling, (request, 0))
    return replace(schedule, waiting=waiting, filling=filling, table=table)


def _chunks(schedule: Schedule) -> tuple[Chunk, ...]:
    """Return the next chunk of the first request in prefill, and chunks of the same width."""
    chunks: list[Chunk] = []
    width = 0
    for request, done in schedule.filling:
        left = schedule.sizes[request].prompt - done
        tokens = min(left, schedule.chunk)
        if not chunks:
            width = width_of(tokens)
        # The number of rows is also padded to a power of two.
        elif width_of(tokens) != width or width << len(chunks).bit_length() > schedule.chunk:
            continue
        chunks.append(Chunk(request=request, first=done, tokens=tokens, last=tokens == left))
    return tuple(chunks)
