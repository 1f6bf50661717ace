"""Upkeep of the scheduler's process: its loop, its memory, starts of others."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import uvloop

__all__ = ["run_in_loop", "settle_memory", "started"]

_log = logging.getLogger("c2c.engine")
_BACKOFF_S = 0.1  # times two for each try in a row that was in vain
_MOST_BACKOFF_S = 5.0


async def started[T](what: str, start: Callable[[], Awaitable[T]]) -> T:
    """Start a process; where the machine refuses (memory is short), try again, later and later."""
    wait_s = _BACKOFF_S
    while True:
        try:
            return await start()
        except OSError as error:
            _log.error("%s cannot be started: %s", what, error.strerror)
        await asyncio.sleep(wait_s)
        wait_s = min(2.0 * wait_s, _MOST_BACKOFF_S)


def run_in_loop[T](work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in an event loop of its own, the one that engines run in."""
    return asyncio.run(work, loop_factory=uvloop.new_event_loop)


def settle_memory() -> None:
    """Leave what there is now out of garbage collection: from here on this process only serves.

    What a start leaves is for good. A collection of all of it takes some milliseconds, in which
    workers wait for their next plans.
    """
    gc.collect()
    gc.freeze()
