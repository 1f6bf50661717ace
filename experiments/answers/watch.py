"""Live view of a search."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Self

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

__all__ = ["Watch"]

EVERY_S = 10.0  # between two lines of a log


class Watch:
    """View of ended runs on standard error; a context manager."""

    def __init__(self, rest: Callable[[int], float], best: Callable[[], str]) -> None:
        self.done = self.asked = 0
        self.rest, self._best = rest, best
        self._began = self._first = self._told = time.monotonic()
        is_terminal = sys.stderr.isatty()
        self._live = Live(
            console=Console(stderr=True, highlight=False), get_renderable=self._shown,
            transient=True, refresh_per_second=4,
        ) if is_terminal else None  # fmt: skip

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._live is not None:
            self._live.stop()

    def ask(self, count: int) -> None:
        """Count runs asked for."""
        self.asked += count

    def run(self) -> None:
        """Count a run that ended."""
        self.done += 1
        now = time.monotonic()
        if self.done == 1:
            self._first = now
        if self._live is None and now - self._told >= EVERY_S:
            self._told = now
            print(f"{self._line()}; {self._best()}", file=sys.stderr, flush=True)

    def _expected(self) -> int:
        return self.asked + round(max(0.0, self.rest(self.asked - self.done)))

    def _line(self) -> str:
        expected, now = self._expected(), time.monotonic()
        line = f"{self.done} of about {expected} runs after {now - self._began:.0f} s"
        if self.done < 2:
            return line
        left_s = (expected - self.done) * (now - self._first) / (self.done - 1)
        return f"{line}, about {left_s:.0f} s left"

    def _shown(self) -> Group:
        row = Table.grid(padding=(0, 1))
        row.add_row(
            ProgressBar(total=max(1, self._expected()), completed=self.done, width=20), self._line()
        )
        return Group(row, Text(self._best(), no_wrap=True, overflow="ellipsis"))
