"""Generation of one sequence, with a runner that holds one request."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from c2c.errors import SettingError
from c2c.models import ModelSpec
from c2c.ranges import Count, check_value
from c2c.transformer.cache import Cache, new_cache
from c2c.transformer.executables import Executables
from c2c.transformer.executor import OnDevice
from c2c.transformer.forward import run
from c2c.transformer.kv_pool import KvPool, block_elements, check_room
from c2c.transformer.linear import Linear
from c2c.transformer.pages import PAGE_TOKENS
from c2c.transformer.params import Params
from c2c.transformer.rope import depends_on_length
from c2c.transformer.runner import Runner, Step
from c2c.transformer.sampling import Sampling
from c2c.transformer.shapes import BUDGETS, Shapes, bucket, pieces

__all__ = [
    "CHUNK",
    "Bucket",
    "Wanted",
    "buckets_of",
    "buckets_up_to",
    "budgets_for",
    "prompt_logits",
    "stream",
    "warm",
]

CHUNK = BUDGETS[-1]  # prompt tokens of a call
_LEAST_PAGES = 8


def budgets_for(spec: ModelSpec, longest: int, chunk: int = CHUNK) -> tuple[int, ...]:
    """Return the sizes of prompt chunks.

    Args:
      spec: the model; if its frequencies depend on the length, a prompt is one call.
      longest: tokens of the longest prompt.
      chunk: maximum tokens of a call, for other models.
    """
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


def stream(
    params: Params,
    ids: Sequence[int],
    spec: ModelSpec,
    linear: Linear,
    *,
    max_new_tokens: int,
    sampling: Sampling,
    stop: Collection[int] = (),
    chunk: int = CHUNK,
    executables: Executables | None = None,
) -> Iterator[int]:
    """Return an iterator over new tokens as they are drawn, a final stop token included.

    Args:
      params: parameters of the model.
      ids: the prompt, at least one token.
      spec: the model.
      linear: strategy for projections.
      max_new_tokens: maximum number of new tokens.
      sampling: sampling settings.
      stop: tokens that end the sequence.
      chunk: prompt tokens in one call.
      executables: source of compiled stages; by default jax compiles for this process.

    Raises:
      SettingError: the cache does not fit in memory.
    """
    budgets = budgets_for(spec, len(ids), chunk)
    pages = _pages(len(ids) + max_new_tokens)
    nbytes = 2 * pages * block_elements(spec) * params.dtype.itemsize
    check_room(nbytes, device=params.device)

    def begun() -> Runner:
        runner = _runner(params, spec, linear, budgets, pages, executables)
        runner.submit(0, ids, new=max_new_tokens, sampling=sampling, stop=stop)
        return runner

    return _drawn(begun, pieces(len(ids), budgets)) if max_new_tokens else iter(())


def _drawn(begun: Callable[[], Runner], prompt: Sequence[int]) -> Iterator[int]:
    """Yield the tokens of a runner's one request, whose prompt is computed in these chunks."""
    runner = begun()
    steps = [Step(fill=(0, tokens)) for tokens in prompt]
    while True:
        step = steps.pop(0) if steps else Step(decode=(0,))
        for _, token, ended in runner.finish(runner.start(step)).tokens:
            yield token
            if ended is not None:
                return


def _runner(
    params: Params,
    spec: ModelSpec,
    linear: Linear,
    budgets: tuple[int, ...],
    pages: int,
    executables: Executables | None,
) -> Runner:
    """Return a runner of one request with a cache of its own."""
    device = params.device
    pool = KvPool.for_one(spec, pages, dtype=params.dtype, executables=executables, device=device)
    shapes = Shapes(rows=(1,), budgets=budgets, width=pages, mixes=False)
    return Runner(OnDevice(params, spec, linear, pool, executables=executables), shapes)


def _own_cache(
    params: Params, spec: ModelSpec, tokens: int, executables: Executables | None
) -> Cache:
    """Return a cache of one sequence, which owns all of its pages."""
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
    """Shapes of one call for one sequence.

    Attributes:
      tokens: padded tokens of a prompt's chunk; 0 for a decode step.
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
    """Part of the possible calls that will run, for `warm`.

    Attributes:
      buckets: shapes of the calls.
      draws: whether tokens are drawn at a temperature above 0; by default both cases.
      scores: whether log-probabilities are returned too.
    """

    buckets: tuple[Bucket, ...]
    draws: tuple[bool, ...] = (False, True)
    scores: bool = True


def buckets_of(prompt: int, new: int) -> tuple[Bucket, ...]:
    """Return the shapes that `stream` runs for a prompt and a number of new tokens.

    >>> buckets_of(300, 8)
    (Bucket(tokens=0, context=512), Bucket(tokens=64, context=512), Bucket(tokens=256, context=512))
    """
    context = _pages(prompt + new) * PAGE_TOKENS
    widths = {next(b for b in BUDGETS if b >= part) for part in pieces(prompt, BUDGETS)}
    return tuple(Bucket(tokens, context) for tokens in sorted(widths | ({0} if new > 1 else set())))


def buckets_up_to(context: int) -> tuple[Bucket, ...]:
    """Return all shapes that `stream` may run for sequences of this many positions.

    Raises:
      SettingError: the number of positions is below 1.
    """
    check_value(context, Count, "context")
    largest = _pages(context) * PAGE_TOKENS
    contexts = [_LEAST_PAGES * PAGE_TOKENS]
    while contexts[-1] < largest:
        contexts.append(2 * contexts[-1])
    return tuple(Bucket(tokens, each) for each in contexts for tokens in (0, *BUDGETS))


def warm(
    params: Params,
    spec: ModelSpec,
    linear: Linear,
    executables: Executables,
    wanted: Wanted,
    *,
    done: Callable[[Bucket], None] = lambda _: None,
) -> None:
    """Prepare the executables of `stream` for these shapes; nothing is computed.

    Args:
      params: parameters of the model.
      spec: the model.
      linear: strategy for projections.
      executables: source of compiled stages.
      wanted: shapes and settings to prepare.
      done: callback after each shape.
    """
    for context in dict.fromkeys(each.context for each in wanted.buckets):
        here = [each for each in wanted.buckets if each.context == context]
        budgets = tuple(sorted({each.tokens for each in here} - {0})) or BUDGETS[:1]
        runner = _runner(params, spec, linear, budgets, context // PAGE_TOKENS, executables)
        runner.warm(
            decodes=any(not each.tokens for each in here), draws=wanted.draws, scores=wanted.scores
        )
        for each in here:
            done(each)
