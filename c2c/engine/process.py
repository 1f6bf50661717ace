"""What the scheduler's process does about itself: its event loop and its memory."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Coroutine
from typing import Any

import uvloop

__all__ = ["run_in_loop", "settle_memory"]


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
