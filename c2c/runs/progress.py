"""Progress on standard error: a bar on a terminal, else a line every few seconds."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

__all__ = ["Show", "progress_bar"]

EVERY_S = 10.0  # between two lines of a log; shorter work prints none
_BAR_WIDTH = 10  # leaves room for the names of works on 80 columns


class Show(Protocol):
    """Function that takes the amount of work done so far."""

    def __call__(self, done: float, weight: float | None = None, now: str = "") -> None:
        """Show the progress.

        Args:
          done: amount done so far.
          weight: amount of the whole work as weighed now, instead of the total; shown in per cent.
          now: names of the works in progress.
        """


@contextmanager
def progress_bar(description: str, total: float | None = None) -> Iterator[Show]:
    """Yield a function that takes the amount done so far and shows it on standard error.

    Args:
      description: name of the work.
      total: amount of the whole work; None if unknown.
    """
    if not sys.stderr.isatty():
        yield _lines(description, total)
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
    from rich.table import Column

    columns = (
        TextColumn("{task.description}"),
        BarColumn(_BAR_WIDTH),
        TextColumn("{task.fields[amount]}"),
        TimeElapsedColumn(),
        TextColumn("{task.fields[rest]}", markup=False, table_column=Column(no_wrap=True)),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(description, total=total, amount="", rest="")
        began = time.monotonic()

        def show(done: float, weight: float | None = None, now: str = "") -> None:
            whole = weight or total
            amount = f"{done:,.0f}" + (f"/{whole:,.0f}" if whole else "")
            amount = f"{100 * done / weight:.0f}%" if weight else amount
            rest = ", ".join(filter(None, [_left(done, whole, began), now]))
            bar.update(task, completed=done, total=whole, amount=amount, rest=rest)

        yield show


def _left(done: float, total: float | None, began: float) -> str:
    if not total or not 0 < done < total:
        return ""
    return f"about {(total - done) / done * (time.monotonic() - began):,.0f} s left"


def _lines(description: str, total: float | None) -> Show:
    began = last = time.monotonic()

    def show(done: float, weight: float | None = None, now: str = "") -> None:
        nonlocal last
        at = time.monotonic()
        if at - last < EVERY_S:
            return
        last = at
        whole = weight or total
        share = f"{100 * done / whole:.0f}%" if whole else ""
        amount = f"{done:,.0f}" + (f" of {whole:,.0f} ({share})" if whole else "")
        parts = [f"{share if weight else amount} after {at - began:.0f} s"]
        text = ", ".join(filter(None, [*parts, _left(done, whole, began), now]))
        print(f"{description}: {text}", file=sys.stderr, flush=True)

    return show
