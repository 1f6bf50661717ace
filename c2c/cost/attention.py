"""Counts behind the cost of attention: pairs of query and key, and cached tokens read."""

from numba.extending import register_jitable

__all__ = ["attention_pairs", "chunk_kv_tokens", "decode_kv_tokens"]


@register_jitable
def attention_pairs(offset: int, chunk: int, window: int) -> int:
    """Return the causal (query, key) pairs of a prefill chunk, per layer and head.

    The query at position q (from 0) sees the keys of positions max(0, q - window + 1) .. q.

    Args:
      offset: tokens of the prompt already in the KV cache.
      chunk: tokens of this chunk.
      window: sliding window in tokens; 0 = none.
    """
    if window <= 0 or offset + chunk <= window:
        return chunk * offset + chunk * (chunk + 1) // 2
    if offset >= window:
        return chunk * window
    rising = window - offset  # queries that still see everything before them
    return rising * offset + rising * (rising + 1) // 2 + (chunk - rising) * window


@register_jitable
def chunk_kv_tokens(offset: int, chunk: int, window: int) -> int:
    """Return the cached tokens a prefill chunk reads: those any of its queries can see."""
    if window <= 0 or offset + 1 <= window:
        return offset + chunk
    return window - 1 + chunk


@register_jitable
def decode_kv_tokens(length: int, window: int) -> int:
    """Return the cached tokens one decode step of a sequence of `length` tokens reads."""
    if window <= 0 or length <= window:
        return length
    return window
