"""What a process that serves does about its memory."""

from __future__ import annotations

import gc

__all__ = ["settle_memory"]


def settle_memory() -> None:
    """Leave what there is now out of garbage collection: from here on this process only serves.

    What a start leaves is for good. A collection of all of it takes some milliseconds, in which
    workers wait for their next plans.
    """
    gc.collect()
    gc.freeze()
