"""Tables of a terminal: no number is shortened, whatever the width."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table

__all__ = ["print_table"]

_ANY_WIDTH = 10_000
_NAME_WIDTH = 12


def print_table(
    out: Console, draw: Callable[[frozenset[str]], Table], spare: Sequence[str] = ()
) -> None:
    """Print a table; where it is too wide, leave out columns, then fold the first one.

    Args:
      out: console to print on.
      draw: function that makes the table without some of the spare columns; its other columns do
        not wrap.
      spare: names of columns to leave out, the first one first.
    """
    table = draw(frozenset())
    for count in range(len(spare) + 1):
        table = draw(frozenset(spare[:count]))
        if _width(out, table) <= out.width:
            break
    if (excess := _width(out, table) - out.width) > 0:
        first = table.columns[0]
        longest = max(Measurement.get(out, out.options, cell).maximum for cell in first.cells)
        first.no_wrap, first.overflow = False, "fold"
        first.min_width, first.max_width = None, max(min(_NAME_WIDTH, longest), longest - excess)
    if (needed := _width(out, table)) > out.width:  # the terminal breaks its lines
        out = Console(file=out.file, width=needed, highlight=False)
    out.print(table)


def _width(out: Console, table: Table) -> int:
    # rich folds a table without outer padding one character before its own measure
    return Measurement.get(out, out.options.update(width=_ANY_WIDTH), table).maximum + 1
