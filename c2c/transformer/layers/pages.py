"""Pages of the KV cache: 64 positions in every layer."""

from __future__ import annotations

from collections.abc import Hashable

__all__ = ["PAGE_TOKENS", "OutOfPages"]

PAGE_TOKENS = 64


class OutOfPages(RuntimeError):
    """Too few pages are free; nothing was changed."""

    def __init__(self, sequence: Hashable, needed: int, free: int) -> None:
        super().__init__(
            f"sequence {sequence!r} needs {needed} more pages, {free} are free: release others, "
            "or make a larger cache"
        )
