"""Compilation without jax's own compilation cache."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from importlib import import_module
from typing import Any

__all__ = ["past_jax_cache"]

_IS_PAST: ContextVar[bool] = ContextVar("past_jax_cache", default=False)


# XLA's CPU executables from that cache (`JAX_COMPILATION_CACHE_DIR`) lose functions when they are
# serialised again: they load, and fail when they run (jax 0.11.2: `NOT_FOUND: Function
# wrapped_broadcast not found`). No setting skips the cache for one compilation: jax reads
# `jax_enable_compilation_cache` once in a process.
@contextmanager
def past_jax_cache() -> Iterator[None]:
    """Bypass jax's compilation cache in this thread."""
    _prepare()
    token = _IS_PAST.set(True)
    try:
        yield
    finally:
        _IS_PAST.reset(token)


@functools.cache
def _prepare() -> None:
    cache: Any = import_module("jax._src.compilation_cache")  # jax has no public way
    is_used = cache.is_cache_used

    @functools.wraps(is_used)
    def is_used_here(backend: Any) -> bool:
        return not _IS_PAST.get() and bool(is_used(backend))

    cache.is_cache_used = is_used_here
