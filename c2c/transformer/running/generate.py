"""Generation with a runner and an own cache."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from c2c.errors import SettingError
from c2c.models import ModelSpec
from c2c.ranges import Count, check_value
from c2c.transformer.executables import Executables
from c2c.transformer.layers.cache import Cache, new_cache
from c2c.transformer.layers.forward import run
from c2c.transformer.layers.linear import Linear
from c2c.transformer.layers.pages import PAGE_TOKENS
from c2c.transformer.layers.params import Params
from c2c.transformer.layers.rope import depends_on_length
from c2c.transformer.running.batch import Drawn, Request, serve
from c2c.transformer.running.executor import OnDevice
from c2c.transformer.running.kv_pool import KvPool
from c2c.transformer.running.runner import Runner
from c2c.transformer.running.shapes import BUDGETS, Shapes, bucket, pieces

__all__ = [
    "CHUNK",
    "Bucket",
    "Wanted",
    "buckets_of",
    "buckets_up_to",
    "budgets_for",
    "prompt_logits",
    "stream_batch",
    "warm",
]

CHUNK = BUDGETS[-1]  # prompt tokens of a call
_LEAST_PAGES = 8  # of a cache and of a block table


def budgets_for(spec: ModelSpec, longest: int, chunk: int = CHUNK) -> tuple[int, ...]:
    """Return the sizes of prompt chunks."""
    if depends_on_length(spec):
        return (max(chunk, bucket(longest, BUDGETS[0])),)
    return (*(b for b in BUDGETS if b < chunk), chunk)


def prompt_logits(
    params: Params,
    ids: Sequence[int],
    spec: ModelSpec,
    linear: Linear,
    *,
    chunk: int = CHUNK,
    executables: Executables | None = None,
) -> np.ndarray:
    """Return the logits of every position: float32 [T, vocab]."""
    executables = None if executables is None else executables.on(params.device)
    cache = _own_cache(params, spec, len(ids), executables)
    budgets = budgets_for(spec, len(ids), chunk)
    parts, first = [], 0
    for count in pieces(len(ids), budgets):
        width = next(b for b in budgets if b >= count)
        tokens, positions = np.zeros((1, width), np.int32), np.full((1, width), -1, np.int32)
        tokens[0, :count] = ids[first : first + count]
        positions[0, :count] = np.arange(first, first + count)
        logits, cache = run(
            params, tokens, positions, cache, spec, linear=linear, executables=executables
        )
        parts.append(np.asarray(logits)[0, :count])
        first += count
    return np.concatenate(parts)


def stream_batch(
    params: Params,
    requests: Sequence[Request],
    spec: ModelSpec,
    linear: Linear,
    *,
    rows: int = 8,
    cache_tokens: int | None = None,
    chunk: int = CHUNK,
    ends: Callable[[int, int], bool] = lambda request, token: False,  # noqa: ARG005
    executables: Executables | None = None,
) -> Iterator[Drawn]:
    """Return an iterator over all requests' tokens, in order within each.

    Args:
      rows: most concurrent requests.
      cache_tokens: positions, in whole pages of 64; by default enough for the largest `rows`
        requests.
      chunk: most prompt tokens of a call, unless rotary frequencies depend on length.
      ends: gets request and token; returns whether the request ends.

    Raises:
      SettingError: at once: an invalid size, a request beyond an empty cache, or a cache beyond
        memory.
    """
    if rows < 1:
        raise SettingError("rows", rows, "a whole number above 0")
    if chunk != bucket(chunk, BUDGETS[0]):
        raise SettingError("chunk", chunk, f"a power of two from {BUDGETS[0]}")
    if cache_tokens is not None and cache_tokens < PAGE_TOKENS:
        allowed = f"at least {PAGE_TOKENS}, one page of the cache"
        raise SettingError("cache_tokens", cache_tokens, allowed)
    queue = [request for request in requests if request.max_new_tokens]
    if not queue:
        return iter(())
    rows = min(rows, bucket(len(queue)))
    needed = sorted((request.pages for request in queue), reverse=True)
    pages = bucket(sum(needed[:rows]), _LEAST_PAGES)
    if cache_tokens is not None:
        pages = cache_tokens // PAGE_TOKENS
    for number, request in enumerate(requests):
        if request.max_new_tokens and request.pages > pages:
            raise SettingError(
                f"requests[{number}]", f"{len(request.ids)} + {request.max_new_tokens} tokens",
                f"at most {pages * PAGE_TOKENS + 1} together, the size of the cache",
                "Request fewer new tokens or a larger cache.",
            )  # fmt: skip
    budgets = budgets_for(spec, max(len(request.ids) for request in queue), chunk)
    width = bucket(needed[0], _LEAST_PAGES)
    classes = (1, rows) if rows > 1 else (1,)
    shapes = Shapes(rows=classes, budgets=budgets, width=width, mixes=rows > 1)
    runner = _runner(params, spec, linear, shapes, pages, executables)
    return (drawn for served in serve(runner, requests, ends=ends) for drawn in served.drawn)


def _runner(
    params: Params,
    spec: ModelSpec,
    linear: Linear,
    shapes: Shapes,
    pages: int,
    executables: Executables | None,
) -> Runner:
    device = params.device
    pool = KvPool.for_one(spec, pages, dtype=params.dtype, executables=executables, device=device)
    return Runner(OnDevice(params, spec, linear, pool, executables=executables), shapes)


def _own_cache(
    params: Params, spec: ModelSpec, tokens: int, executables: Executables | None
) -> Cache:
    pages = _pages(tokens)
    return new_cache(
        spec,
        pages=pages,
        page_tokens=PAGE_TOKENS,
        dtype=params.dtype,
        tables=np.arange(pages, dtype=np.int32)[None],
        executables=executables,
        device=params.device,
    )


def _pages(tokens: int) -> int:
    return bucket(-(-tokens // PAGE_TOKENS), _LEAST_PAGES)


@dataclass(frozen=True, slots=True, order=True)
class Bucket:
    """Shapes of a call for one sequence.

    Attributes:
      tokens: of a padded chunk; 0: a decode.
      context: positions in the cache.
    """

    tokens: int
    context: int

    def __post_init__(self) -> None:
        if self.tokens and self.tokens != bucket(self.tokens, BUDGETS[0]):
            raise SettingError(
                "bucket.tokens", self.tokens, f"0 or a power of two from {BUDGETS[0]}"
            )
        if self.context != _pages(self.context) * PAGE_TOKENS:
            raise SettingError(
                "bucket.context",
                self.context,
                f"{_LEAST_PAGES * PAGE_TOKENS} times a power of two",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Calls that will run, for `warm`.

    Attributes:
      draws: whether temperatures are above 0; by default both.
    """

    buckets: tuple[Bucket, ...]
    draws: tuple[bool, ...] = (False, True)
    scores: bool = True


def buckets_of(prompt: int, new: int) -> tuple[Bucket, ...]:
    """Return the shapes that `stream_batch` runs for one prompt and new tokens.

    >>> buckets_of(300, 8)
    (Bucket(tokens=0, context=512), Bucket(tokens=64, context=512), Bucket(tokens=256, context=512))
    """
    context = _pages(prompt + new - 1) * PAGE_TOKENS
    widths = {next(b for b in BUDGETS if b >= part) for part in pieces(prompt, BUDGETS)}
    return tuple(Bucket(tokens, context) for tokens in sorted(widths | ({0} if new > 1 else set())))


def buckets_up_to(context: int) -> tuple[Bucket, ...]:
    """Return all shapes of `stream_batch` for a sequence.

    Raises:
      SettingError: below 1 position.
    """
    check_value(context, Count, "context")
    largest = _pages(context) * PAGE_TOKENS
    contexts = [_LEAST_PAGES * PAGE_TOKENS]
    while contexts[-1] < largest:
        contexts.append(2 * contexts[-1])
    return tuple(Bucket(tokens, length) for length in contexts for tokens in (0, *BUDGETS))


def warm(
    params: Params,
    spec: ModelSpec,
    linear: Linear,
    executables: Executables,
    targets: Wanted,
    *,
    done: Callable[[Bucket], None] = lambda _: None,
) -> None:
    """Prepare `stream_batch`'s executables of these shapes, with a callback each."""
    for context in dict.fromkeys(size.context for size in targets.buckets):
        here = [size for size in targets.buckets if size.context == context]
        budgets = tuple(sorted({size.tokens for size in here} - {0})) or BUDGETS[:1]
        pages = context // PAGE_TOKENS
        shapes = Shapes(rows=(1,), budgets=budgets, width=pages, mixes=False)
        runner = _runner(params, spec, linear, shapes, pages, executables)
        runner.warm(
            decodes=any(not size.tokens for size in here),
            draws=targets.draws,
            scores=targets.scores,
        )
        for size in here:
            done(size)
