"""Progress on standard error: a bar on a terminal, else a line every few seconds."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["progress_bar"]

EVERY_S = 10.0  # between two lines of a log; shorter work prints none


@contextmanager
def progress_bar(description: str, total: float | None = None) -> Iterator[Callable[[float], None]]:
    """Yield a function that takes the amount done so far and shows it on standard error.

    Args:
      description: name of the work.
      total: amount of the whole work; None if unknown.
    """
    if not sys.stderr.isatty():
        yield _lines(description, total)
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(description, total=total)
        yield lambda done: bar.update(task, completed=done)


def _lines(description: str, total: float | None) -> Callable[[float], None]:
    began = last = time.monotonic()

    def say(done: float) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last < EVERY_S:
            return
        last = now
        text = f"{description}: {done:,.0f}"
        if total:
            text += f" of {total:,.0f} ({100 * done / total:.0f}%)"
        text += f" after {now - began:.0f} s"
        if total and 0 < done < total:
            text += f", about {(total - done) / done * (now - began):.0f} s left"
        print(text, file=sys.stderr, flush=True)

    return say
