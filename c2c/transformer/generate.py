"""One sequence from prompt to last token: chunks of the prompt, then a token at a time."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from c2c.errors import SettingError
from c2c.models import ModelSpec
from c2c.transformer.cache import Cache, new_cache
from c2c.transformer.executables import Executables, Stage
from c2c.transformer.forward import run
from c2c.transformer.linear import Linear
from c2c.transformer.params import Params
from c2c.transformer.rope import depends_on_length
from c2c.transformer.sampling import Sampling, SamplingRows, sample, sampling_rows

__all__ = [
    "CHUNK",
    "PAGE_TOKENS",
    "Bucket",
    "bucket",
    "buckets_of",
    "buckets_up_to",
    "prompt_logits",
    "stream",
    "warm",
]

CHUNK = 512  # tokens of a prompt at a time
PAGE_TOKENS = 64
_LEAST_BUCKET = 16
_LEAST_PAGES = 8


def bucket(size: int, least: int = 1) -> int:
    """Return the power of two that `size` is padded to, so that few shapes are compiled.

    >>> [bucket(n) for n in (1, 2, 3, 64, 65)]
    [1, 2, 4, 64, 128]
    """
    return max(least, 1 << (size - 1).bit_length())


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
    cache = _own_cache(params, spec, len(ids), executables)
    parts = []
    for tokens, positions, count in _chunks(ids, chunk, spec):
        logits, cache = run(
            params, tokens, positions, cache, spec, linear=linear, executables=executables
        )
        parts.append(np.asarray(logits)[0, :count])
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
    """Yield new tokens one by one, the stop token included if one ends the sequence.

    Args:
      params: of the model.
      ids: the prompt, at least one token.
      spec: the model.
      linear: how projections are multiplied.
      max_new_tokens: at most so many.
      sampling: how they are drawn.
      stop: tokens after which nothing follows.
      chunk: tokens of the prompt in one call.
      executables: where compiled stages come from; by default jax compiles for this process.
    """
    if max_new_tokens < 1:
        return
    cache = _own_cache(params, spec, len(ids) + max_new_tokens, executables)
    draw = _DRAW.jitted if executables is None else executables.bind(_DRAW)
    rows = sampling_rows([sampling])
    hot = sampling.temperature > 0
    seen = np.zeros((1, spec.vocab), bool)
    seen[0, np.asarray(ids)] = True
    logits: Any = None
    for tokens, positions, count in _chunks(ids, chunk, spec):
        last = np.array([count - 1], np.int32)
        logits, cache = run(
            params,
            tokens,
            positions,
            cache,
            spec,
            linear=linear,
            wanted=last,
            executables=executables,
        )
    held = jax.device_put(seen, jax.devices()[0])
    for step in range(max_new_tokens):
        token, held = draw(logits, held, rows, np.array([step], np.int32), hot=hot)
        known = int(np.asarray(token)[0])
        yield known
        if known in stop or step + 1 == max_new_tokens:
            return
        position = np.array([len(ids) + step], np.int32)
        logits, cache = run(
            params,
            token,
            position,
            cache,
            spec,
            linear=linear,
            decode_rows=1,
            executables=executables,
        )


def _draw(
    logits: jax.Array, seen: jax.Array, rows: SamplingRows, step: jax.Array, *, hot: bool
) -> tuple[jax.Array, jax.Array]:
    """Return the next token of each row, and which tokens the rows hold with it."""
    token = sample(logits, rows, step, seen, hot=hot)
    return token, seen.at[jnp.arange(seen.shape[0]), token].set(True)


_DRAW = Stage(name="draw", function=_draw, donated=(1,), static=("hot",))


def _own_cache(
    params: Params, spec: ModelSpec, tokens: int, executables: Executables | None
) -> Cache:
    """Return a cache for one sequence, whose pages are all its own."""
    pages = _pages(tokens)
    tables = np.arange(pages, dtype=np.int32)[None]
    dtype = params.dtype
    return new_cache(
        spec,
        pages=pages,
        page_tokens=PAGE_TOKENS,
        dtype=dtype,
        tables=tables,
        executables=executables,
    )


def _pages(tokens: int) -> int:
    return bucket(-(-tokens // PAGE_TOKENS), _LEAST_PAGES)


def _chunks(
    ids: Sequence[int], chunk: int, spec: ModelSpec
) -> Iterator[tuple[np.ndarray, np.ndarray, int]]:
    """Cut a prompt into (tokens [1, T], positions [1, T], tokens that are no padding)."""
    if depends_on_length(spec):
        chunk = max(chunk, len(ids))
    for first in range(0, len(ids), chunk):
        part = np.asarray(ids[first : first + chunk], np.int32)
        width = _width(len(part))
        tokens = np.zeros((1, width), np.int32)
        positions = np.full((1, width), -1, np.int32)
        tokens[0, : len(part)] = part
        positions[0, : len(part)] = np.arange(first, first + len(part))
        yield tokens, positions, len(part)


def _width(tokens: int) -> int:
    return 1 if tokens == 1 else bucket(tokens, _LEAST_BUCKET)


@dataclass(frozen=True, slots=True, order=True)
class Bucket:
    """The shapes of one call for one sequence.

    Attributes:
      tokens: of the call with padding; 0 for a decode step.
      context: positions that the cache has room for.
    """

    tokens: int
    context: int

    def __post_init__(self) -> None:
        if self.tokens and self.tokens != _width(self.tokens):
            raise SettingError("bucket.tokens", self.tokens, "0, 1 or a power of two from 16")
        if self.context != _pages(self.context) * PAGE_TOKENS:
            raise SettingError(
                "bucket.context",
                self.context,
                f"{_LEAST_PAGES * PAGE_TOKENS} times a power of two",
            )


def buckets_of(prompt: int, new: int, *, chunk: int = CHUNK) -> tuple[Bucket, ...]:
    """Return what `stream` runs for a prompt of so many tokens and so many new ones.

    >>> buckets_of(600, 8)
    (Bucket(tokens=0, context=1024), Bucket(tokens=128, context=1024), \
Bucket(tokens=512, context=1024))
    """
    context = _pages(prompt + new) * PAGE_TOKENS
    widths = {_width(min(chunk, prompt - first)) for first in range(0, prompt, chunk)}
    return tuple(Bucket(tokens, context) for tokens in sorted(widths | ({0} if new > 1 else set())))


def buckets_up_to(context: int, *, chunk: int = CHUNK) -> tuple[Bucket, ...]:
    """Return all that `stream` may run for sequences of so many positions.

    Raises:
      SettingError: there are none.
    """
    if context < 1:
        raise SettingError("context", context, "a whole number above 0")
    largest = _pages(context) * PAGE_TOKENS
    contexts, widths = [_LEAST_PAGES * PAGE_TOKENS], [0, 1, _LEAST_BUCKET]
    while contexts[-1] < largest:
        contexts.append(2 * contexts[-1])
    while widths[-1] < chunk:
        widths.append(2 * widths[-1])
    return tuple(Bucket(tokens, each) for each in contexts for tokens in widths)


def warm(
    params: Params,
    spec: ModelSpec,
    linear: Linear,
    executables: Executables,
    buckets: Sequence[Bucket],
    *,
    done: Callable[[Bucket], None] = lambda _: None,
) -> None:
    """Have ready what `stream` runs for these buckets, greedy or drawing; nothing is computed.

    Args:
      params: of the model.
      spec: the model.
      linear: how projections are multiplied.
      executables: where compiled stages come from.
      buckets: the shapes.
      done: is told each.
    """
    one = np.zeros(1, np.int32)
    caches: dict[int, Cache] = {}
    for each in buckets:
        if each.context not in caches:
            caches[each.context] = _own_cache(params, spec, each.context, executables)
        tokens = np.zeros((1, each.tokens), np.int32) if each.tokens else one
        logits, _ = run(
            params,
            tokens,
            tokens,
            caches[each.context],
            spec,
            linear=linear,
            decode_rows=0 if each.tokens else 1,
            wanted=one if each.tokens else None,
            executables=executables,
            ahead=True,
        )
        for hot in (False, True):
            seen = np.zeros((1, spec.vocab), bool)
            rows = sampling_rows([Sampling()])
            executables.bind_ahead(_DRAW)(logits, seen, rows, one, hot=hot)
        done(each)
