"""Progress on a terminal; silent where output goes to a file or a pipe."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["progress_bar"]


@contextmanager
def progress_bar(description: str, total: float | None = None) -> Iterator[Callable[[float], None]]:
    """Yield a function that takes how much is done so far; draws only on a terminal.

    Args:
      description: what is being done.
      total: how much there is to do; None if that is not known.
    """
    if not sys.stderr.isatty():
        yield lambda done: None  # noqa: ARG005 (the caller's protocol)
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
