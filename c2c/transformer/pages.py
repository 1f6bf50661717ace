"""Page allocator of the KV cache, as pure functions.

A page holds the keys and values of `page_tokens` positions of one sequence, in every layer. Each
page is free or owned by exactly one sequence; freed pages are reused first.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

import numpy as np

from c2c.errors import SettingError

__all__ = [
    "PAGE_TOKENS",
    "OutOfPages",
    "PageTable",
    "block_tables",
    "can_hold",
    "empty",
    "hold",
    "release",
]

PAGE_TOKENS = 64  # default positions per page


class OutOfPages(RuntimeError):
    """Too few pages are free; nothing was changed."""

    def __init__(self, sequence: Hashable, needed: int, free: int) -> None:
        super().__init__(
            f"sequence {sequence!r} needs {needed} more pages, {free} are free: release others, "
            "or make a larger cache"
        )
        self.needed = needed
        self.free = free


@dataclass(frozen=True, slots=True, kw_only=True)
class PageTable:
    """Pages of every sequence in order of position, and free pages."""

    pages: int
    page_tokens: int
    free: tuple[int, ...]  # allocated from the end
    owned: Mapping[Hashable, tuple[int, ...]] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def used(self) -> int:
        """Number of pages owned by sequences."""
        return self.pages - len(self.free)


def empty(pages: int, page_tokens: int) -> PageTable:
    """Return a table whose pages are all free.

    Raises:
      SettingError: a size is below 1.
    """
    for name, value in (("pages", pages), ("page_tokens", page_tokens)):
        if value < 1:
            raise SettingError(f"cache.{name}", value, "a whole number above 0")
    return PageTable(pages=pages, page_tokens=page_tokens, free=tuple(range(pages))[::-1])


def missing(table: PageTable, sequence: Hashable, tokens: int) -> int:
    """Return the number of pages that a sequence lacks for its first `tokens` positions."""
    needed = -(-tokens // table.page_tokens)
    return max(0, needed - len(table.owned.get(sequence, ())))


def can_hold(table: PageTable, sequence: Hashable, tokens: int) -> bool:
    """Return True if `hold` would succeed."""
    return missing(table, sequence, tokens) <= len(table.free)


def hold(table: PageTable, sequence: Hashable, tokens: int) -> PageTable:
    """Return the table in which a sequence owns pages for its first `tokens` positions.

    Pages that it owns already are kept.

    Raises:
      OutOfPages: too few pages are free.
    """
    needed = missing(table, sequence, tokens)
    if needed > len(table.free):
        raise OutOfPages(sequence, needed, len(table.free))
    if not needed and sequence in table.owned:
        return table
    kept = len(table.free) - needed
    more = table.free[kept:][::-1]
    owned = {**table.owned, sequence: (*table.owned.get(sequence, ()), *more)}
    return PageTable(
        pages=table.pages,
        page_tokens=table.page_tokens,
        free=table.free[:kept],
        owned=MappingProxyType(owned),
    )


def release(table: PageTable, sequence: Hashable) -> PageTable:
    """Return the table in which a sequence owns no pages.

    Raises:
      KeyError: the sequence is not in the table.
    """
    if sequence not in table.owned:
        raise KeyError(f"sequence {sequence!r} owns no pages: released twice, or never held")
    owned = {key: pages for key, pages in table.owned.items() if key != sequence}
    return PageTable(
        pages=table.pages,
        page_tokens=table.page_tokens,
        free=(*table.free, *table.owned[sequence][::-1]),
        owned=MappingProxyType(owned),
    )


def block_tables(table: PageTable, sequences: Sequence[Hashable], width: int) -> np.ndarray:
    """Return page numbers, int32 [len(sequences), width]; -1 for no page.

    Args:
      table: page table.
      sequences: sequence of each row of a batch; one without pages gives a row of -1.
      width: pages per row, at least as many as any of these sequences owns.

    Raises:
      ValueError: a sequence owns more than `width` pages.
    """
    rows = np.full((len(sequences), width), -1, np.int32)
    for row, sequence in enumerate(sequences):
        pages = table.owned.get(sequence, ())
        if len(pages) > width:
            raise ValueError(
                f"width={width}: expected at least {len(pages)}, the pages of {sequence!r}"
            )
        rows[row, : len(pages)] = pages
    return rows
