"""Progress on standard error: a bar or lines."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

__all__ = ["Show", "Weighed", "progress_bar"]

EVERY_S = 10.0  # between two lines of a log; shorter work prints none
_BAR_WIDTH = 10  # leaves room for the names of works on 80 columns


@dataclass(frozen=True, slots=True)
class Weighed:
    """Progress of unlike works.

    Attributes:
      total: amount of the whole, which may change.
      now: names of works in progress.
      left_s: seconds left; None if unknown.
    """

    total: float
    now: str
    left_s: float | None


class Show(Protocol):
    """Function that shows progress on standard error."""

    def __call__(self, done: float, work: Weighed | None = None, /) -> None:
        """Show the work done, in per cent if weighed."""


@contextmanager
def progress_bar(description: str, total: float | None = None) -> Iterator[Show]:
    """Yield a function that shows progress; `total` is None if unknown or weighed."""
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

        def show(done: float, work: Weighed | None = None, /) -> None:
            whole = work.total if work else total
            amount = f"{done:,.0f}" + (f"/{whole:,.0f}" if whole else "")
            amount = f"{100 * done / work.total:.0f}%" if work else amount
            rest = ", ".join(_rest(done, total, work, began))
            bar.update(task, completed=done, total=whole, amount=amount, rest=rest)

        yield show


def _rest(done: float, total: float | None, work: Weighed | None, began: float) -> Iterator[str]:
    if work is not None:
        left_s = work.left_s
    else:
        elapsed_s = time.monotonic() - began
        left_s = (total - done) / done * elapsed_s if total and 0 < done < total else None
    if left_s is not None:
        yield f"about {left_s:,.0f} s left"
    if work is not None and work.now:
        yield work.now


def _lines(description: str, total: float | None) -> Show:
    began = last = time.monotonic()

    def show(done: float, work: Weighed | None = None, /) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last < EVERY_S:
            return
        last = now
        whole = work.total if work else total
        share = f"{100 * done / whole:.0f}%" if whole else ""
        amount = f"{done:,.0f}" + (f" of {whole:,.0f} ({share})" if whole else "")
        parts = [f"{share if work else amount} after {now - began:.0f} s"]
        text = ", ".join([*parts, *_rest(done, total, work, began)])
        print(f"{description}: {text}", file=sys.stderr, flush=True)

    return show
