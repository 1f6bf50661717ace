"""The closed set of shapes that a runner computes in, and how prompts are cut to fit them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from c2c.errors import SettingError
from c2c.transformer.pages import PAGE_TOKENS

__all__ = ["BUDGETS", "Shapes", "bucket", "pieces"]

BUDGETS = (16, 64, 256)  # tokens of a prompt in one call


def bucket(size: int, least: int = 1) -> int:
    """Return the power of two that `size` is padded to, so that few shapes are compiled.

    >>> [bucket(n) for n in (1, 2, 3, 64, 65)]
    [1, 2, 4, 64, 128]
    """
    return max(least, 1 << (size - 1).bit_length())


@dataclass(frozen=True, slots=True, kw_only=True)
class Shapes:
    """Shapes that a runner may compute: decode steps of each row class, and chunks.

    Attributes:
      rows: rows of one token, ascending; a step takes the smallest that holds its requests.
      budgets: tokens of a prompt's chunk, ascending.
      width: blocks of a sequence at most, that is, columns of the block tables.
      mixes: whether a chunk comes beside rows of one token, the widest; else alone.
    """

    rows: tuple[int, ...] = (1, 8)
    budgets: tuple[int, ...] = (64, 256)
    width: int = 32
    mixes: bool = True

    def __post_init__(self) -> None:
        for name, values in (("rows", self.rows), ("budgets", self.budgets)):
            if not values or list(values) != sorted(set(values)) or values[0] < 1:
                raise SettingError(f"shapes.{name}", values, "ascending whole numbers above 0")
        if self.width < 1:
            raise SettingError("shapes.width", self.width, "a whole number above 0")

    @property
    def calls(self) -> tuple[tuple[int, int], ...]:
        """All there are: tokens of the chunk (0: none), and rows of one token beside it.

        >>> Shapes(rows=(1, 8), budgets=(64, 256)).calls
        ((0, 1), (0, 8), (64, 8), (256, 8))
        """
        beside = self.rows[-1] if self.mixes else 0
        return (*((0, rows) for rows in self.rows), *((budget, beside) for budget in self.budgets))

    def draws(self, chunk: int, rows: int) -> int:
        """Return how many rows of logits a call has: one, or as many as any, so that two sizes do.

        >>> shapes = Shapes(rows=(1, 8), budgets=(64, 256))
        >>> [shapes.draws(*call) for call in shapes.calls]
        [1, 9, 9, 9]
        """
        return 1 if (chunk > 0) + rows == 1 else self.rows[-1] + self.mixes

    def call_for(self, tokens: int, decodes: int) -> tuple[int, int] | None:
        """Return the first that holds a chunk of so many tokens and so many decodes, if any does.

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
        """Positions of a sequence at most."""
        return self.width * PAGE_TOKENS


def pieces(tokens: int, budgets: Sequence[int]) -> list[int]:
    """Cut a prompt into calls: whole budgets first, and a rest that is padded to at most twice it.

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
