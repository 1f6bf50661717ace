"""Tables of a terminal."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.measure import Measurement
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

__all__ = ["Name", "console", "print_line", "print_table", "print_trimmed", "short_names"]

_ANY_WIDTH = 10_000
_NAME_WIDTH = 12
_PLAIN_WIDTH = 100  # if output is no terminal and COLUMNS is not set


def console() -> Console:
    """Return a console as wide as the terminal, `COLUMNS` or 100."""
    plain: Any = {"highlight": False, "emoji": False}  # an id may hold ":free:"
    terminal = Console(**plain)
    has_width = terminal.is_terminal or "COLUMNS" in os.environ
    return terminal if has_width else Console(**plain, width=_PLAIN_WIDTH)


@dataclass(frozen=True, slots=True)
class Name:
    """A name in a table, shortened in its middle."""

    text: str

    def __rich_measure__(self, out: Console, options: ConsoleOptions) -> Measurement:
        """Return the narrowest and the widest form."""
        width = Text(self.text).cell_len
        return Measurement(min(width, _NAME_WIDTH), width)

    def __rich_console__(self, out: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the name, at most as wide as the column."""
        text, width = self.text, options.max_width
        if Text(text).cell_len > width:
            end = (width - 1) // 2
            text = f"{text[: width - 1 - end]}…{text[len(text) - end :]}"
        yield Text(text, no_wrap=True)


def short_names(names: Sequence[str]) -> dict[str, str]:
    """Return each setting's name with as few of its last parts as tell it apart.

    >>> short_names(["workload.rate_rps", "slo.ttft_s", "catalog.slo.ttft_s", "system/alpha"])
    {'workload.rate_rps': 'rate_rps', 'slo.ttft_s': 'slo.ttft_s', \
'catalog.slo.ttft_s': 'catalog.slo.ttft_s', 'system/alpha': 'alpha'}
    """
    parts = {name: name.lstrip("+").replace("/", ".").split(".") for name in names}

    def short(name: str) -> str:
        words = parts[name]
        for count in range(1, len(words)):
            if not any(o[-count:] == words[-count:] for n, o in parts.items() if n != name):
                return ".".join(words[-count:])
        return ".".join(words)

    return {name: short(name) for name in names}


def print_table(
    out: Console, draw: Callable[[frozenset[str]], Table], spare: Sequence[str] = ()
) -> None:
    """Print a table; if too wide, without some columns."""
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
    print_trimmed(out, table)


def print_line(out: Console, text: str, style: str = "") -> None:
    """Print a text as it is, wrapped at words."""
    print_trimmed(out, Text(text, style=style))


def print_trimmed(out: Console, shown: RenderableType) -> None:
    """Print without the blanks that rich appends to a table's lines."""
    out.print(_Trimmed(shown))


@dataclass(frozen=True, slots=True)
class _Trimmed:
    inner: RenderableType

    def __rich_measure__(self, out: Console, options: ConsoleOptions) -> Measurement:
        return Measurement.get(out, options, self.inner)

    def __rich_console__(self, out: Console, options: ConsoleOptions) -> Iterable[Segment]:
        for line in out.render_lines(self.inner, options, pad=False):
            while line and not line[-1].text.strip():
                line.pop()
            if line:
                text, style, control = line.pop()
                yield from (*line, Segment(text.rstrip(), style, control))
            yield Segment.line()


def _width(out: Console, table: Table) -> int:
    # rich folds a table without outer padding one character before its own measure
    return Measurement.get(out, out.options.update(width=_ANY_WIDTH), table).maximum + 1
