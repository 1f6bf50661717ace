"""One sequence from prompt to last token: chunks of the prompt, then a token at a time."""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from c2c.models import ModelSpec
from c2c.transformer.cache import Cache, new_cache
from c2c.transformer.forward import run
from c2c.transformer.linear import Linear
from c2c.transformer.params import Params
from c2c.transformer.sampling import Sampling, SamplingRows, sample, sampling_rows

__all__ = ["CHUNK", "PAGE_TOKENS", "bucket", "prompt_logits", "stream"]

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
    params: Params, ids: Sequence[int], spec: ModelSpec, linear: Linear, *, chunk: int = CHUNK
) -> np.ndarray:
    """Return the logits of every position: float32 [T, vocab]."""
    cache = _own_cache(params, spec, len(ids))
    parts = []
    for tokens, positions, count in _chunks(ids, chunk):
        logits, cache = run(params, tokens, positions, cache, spec, linear=linear)
        parts.append(np.asarray(logits[0, :count]))
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
    """
    if max_new_tokens < 1:
        return
    cache = _own_cache(params, spec, len(ids) + max_new_tokens)
    rows = sampling_rows([sampling])
    hot = sampling.temperature > 0
    seen = np.zeros((1, spec.vocab), bool)
    seen[0, np.asarray(ids)] = True
    logits: Any = None
    for tokens, positions, count in _chunks(ids, chunk):
        last = np.array([count - 1], np.int32)
        logits, cache = run(params, tokens, positions, cache, spec, linear=linear, wanted=last)
    held = jax.device_put(seen, jax.devices()[0])
    for step in range(max_new_tokens):
        token, held = _draw(logits, held, rows, np.array([step], np.int32), hot=hot)
        known = int(token[0])
        yield known
        if known in stop or step + 1 == max_new_tokens:
            return
        position = np.array([len(ids) + step], np.int32)
        logits, cache = run(params, token, position, cache, spec, linear=linear, decode_rows=1)


@functools.partial(jax.jit, static_argnames=("hot",), donate_argnames=("seen",))
def _draw(
    logits: jax.Array, seen: jax.Array, rows: SamplingRows, step: jax.Array, *, hot: bool
) -> tuple[jax.Array, jax.Array]:
    """Return the next token of each row, and which tokens the rows hold with it."""
    token = sample(logits, rows, step, seen, hot=hot)
    return token, seen.at[jnp.arange(seen.shape[0]), token].set(True)


def _own_cache(params: Params, spec: ModelSpec, tokens: int) -> Cache:
    """Return a cache for one sequence, whose pages are all its own."""
    pages = bucket(-(-tokens // PAGE_TOKENS), _LEAST_PAGES)
    tables = np.arange(pages, dtype=np.int32)[None]
    dtype = params.embed.dtype
    return new_cache(spec, pages=pages, page_tokens=PAGE_TOKENS, dtype=dtype, tables=tables)


def _chunks(ids: Sequence[int], chunk: int) -> Iterator[tuple[np.ndarray, np.ndarray, int]]:
    """Cut a prompt into (tokens [1, T], positions [1, T], tokens that are no padding)."""
    for first in range(0, len(ids), chunk):
        part = np.asarray(ids[first : first + chunk], np.int32)
        width = 1 if len(part) == 1 else bucket(len(part), _LEAST_BUCKET)
        tokens = np.zeros((1, width), np.int32)
        positions = np.full((1, width), -1, np.int32)
        tokens[0, : len(part)] = part
        positions[0, : len(part)] = np.arange(first, first + len(part))
        yield tokens, positions, len(part)
