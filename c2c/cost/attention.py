"""Counts behind the cost of attention."""

from c2c.jit import formula
from c2c.models import CacheShape

__all__ = [
    "attention_pairs",
    "cache_pairs",
    "cache_places",
    "chunk_kv_tokens",
    "chunk_places",
    "decode_kv_tokens",
]


# Functions with a window count one layer; those with a `CacheShape` sum over a model's layers.
@formula
def attention_pairs(offset: int, chunk: int, window: int) -> int:
    """Return the causal (query, key) pairs of a prefill chunk, per layer and head.

    Query q sees keys max(0, q - window + 1) .. q.

    Args:
      offset: cached tokens of the prompt.
      window: in tokens; 0: none.
    """
    if window <= 0 or offset + chunk <= window:
        return chunk * offset + chunk * (chunk + 1) // 2
    if offset >= window:
        return chunk * window
    rising = window - offset  # queries that still see all earlier tokens
    return rising * offset + rising * (rising + 1) // 2 + (chunk - rising) * window


@formula
def chunk_kv_tokens(offset: int, chunk: int, window: int) -> int:
    """Return the cached tokens that a prefill chunk reads."""
    if window <= 0 or offset + 1 <= window:
        return offset + chunk
    return window - 1 + chunk


@formula
def decode_kv_tokens(length: int, window: int) -> int:
    """Return the cached tokens that a decode at `length` reads."""
    if window <= 0 or length <= window:
        return length
    return window


@formula
def cache_pairs(offset: int, chunk: int, cache: CacheShape) -> int:
    """Return a prefill chunk's (query, key) pairs by cache positions."""
    pairs = cache.full * attention_pairs(offset, chunk, 0)
    if cache.windowed > 0:
        pairs += cache.windowed * attention_pairs(offset, chunk, cache.window)
    return pairs


@formula
def chunk_places(offset: int, chunk: int, cache: CacheShape) -> int:
    """Count positions that a prefill chunk reads."""
    places = cache.full * (offset + chunk)
    if cache.windowed > 0:
        places += cache.windowed * chunk_kv_tokens(offset, chunk, cache.window)
    return places


@formula
def cache_places(tokens: int, cache: CacheShape) -> int:
    """Return a sequence's KV positions, without recurrent state."""
    places = cache.full * tokens
    if cache.windowed > 0:
        places += cache.windowed * decode_kv_tokens(tokens, cache.window)
    return places
