"""Event loop, garbage collection and child processes."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import uvloop

__all__ = ["run_in_loop", "settle_memory", "started"]

_log = logging.getLogger("c2c.engine")
_BACKOFF_S = 0.1  # doubled after each failed try
_MOST_BACKOFF_S = 5.0


async def started[T](name: str, start: Callable[[], Awaitable[T]]) -> T:
    """Start a process, with retries if memory is short."""
    wait_s = _BACKOFF_S
    while True:
        try:
            return await start()
        except OSError as error:
            _log.error("%s cannot be started: %s", name, error.strerror)
        await asyncio.sleep(wait_s)
        wait_s = min(2.0 * wait_s, _MOST_BACKOFF_S)


def run_in_loop[T](work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in a new uvloop."""
    return asyncio.run(work, loop_factory=uvloop.new_event_loop)


def settle_memory() -> None:
    """Exclude present objects from garbage collection, which takes milliseconds."""
    gc.collect()
    gc.freeze()
