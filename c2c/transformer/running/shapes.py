"""Closed set of call shapes, and prompts' split."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from c2c.errors import SettingError
from c2c.ranges import Count, check_value
from c2c.transformer.layers.pages import PAGE_TOKENS

__all__ = ["BUDGETS", "Shapes", "bucket", "pieces"]

BUDGETS = (16, 64, 256)  # prompt tokens in one call


def bucket(size: int, least: int = 1) -> int:
    """Return the next power of two from `size`.

    >>> [bucket(n) for n in (1, 2, 3, 64, 65)]
    [1, 2, 4, 64, 128]
    """
    return max(least, 1 << (size - 1).bit_length())


@dataclass(frozen=True, slots=True, kw_only=True)
class Shapes:
    """Allowed call shapes: decode steps by row class, and chunks.

    Attributes:
      rows: one-token rows, ascending.
      budgets: prompt chunks, ascending.
      width: maximum blocks of a sequence.
      mixes: whether chunks share calls with the most one-token rows.
    """

    rows: tuple[int, ...] = (1, 8)
    budgets: tuple[int, ...] = (64, 256)
    width: int = 32
    mixes: bool = True

    def __post_init__(self) -> None:
        for name, values in (("rows", self.rows), ("budgets", self.budgets)):
            if not values or list(values) != sorted(set(values)) or values[0] < 1:
                raise SettingError(f"shapes.{name}", values, "ascending whole numbers above 0")
        check_value(self.width, Count, "shapes.width")

    @property
    def calls(self) -> tuple[tuple[int, int], ...]:
        """All call shapes: tokens of the chunk (0: none) and one-token rows.

        >>> Shapes(rows=(1, 8), budgets=(64, 256)).calls
        ((0, 1), (0, 8), (64, 8), (256, 8))
        """
        beside = self.rows[-1] if self.mixes else 0
        return (*((0, rows) for rows in self.rows), *((budget, beside) for budget in self.budgets))

    def draws(self, chunk: int, rows: int) -> int:
        """Return a call's logit rows: one, or the maximum.

        >>> shapes = Shapes(rows=(1, 8), budgets=(64, 256))
        >>> [shapes.draws(*call) for call in shapes.calls]
        [1, 9, 9, 9]
        """
        return 1 if (chunk > 0) + rows == 1 else self.rows[-1] + self.mixes

    def call_for(self, tokens: int, decodes: int) -> tuple[int, int] | None:
        """Return the first call shape for this chunk and these decodes, or None.

        >>> Shapes(rows=(1, 8), budgets=(64, 256)).call_for(65, 2)
        (256, 8)
        """
        return next(
            (
                (chunk, rows)
                for chunk, rows in self.calls
                if (chunk > 0) == (tokens > 0) and chunk >= tokens and rows >= decodes
            ),
            None,
        )

    @property
    def context(self) -> int:
        """Maximum positions of a sequence."""
        return self.width * PAGE_TOKENS


def pieces(tokens: int, budgets: Sequence[int]) -> list[int]:
    """Split a prompt into whole budgets and a rest whose padding at most doubles it.

    >>> pieces(300, (64, 256)), pieces(88, (16, 64, 256)), pieces(5, (16, 64))
    ([256, 44], [64, 16, 8], [5])
    """
    cut: list[int] = []
    while tokens:
        fitting = next((b for b in budgets if b >= tokens), None)
        if fitting is not None and (fitting <= 2 * tokens or fitting == budgets[0]):
            part = tokens
        else:
            part = max(b for b in budgets if b <= tokens)
        cut.append(part)
        tokens -= part
    return cut
