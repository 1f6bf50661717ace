"""Progress of a run: a bar on a terminal, a line every `EVERY_S` elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

EVERY_S = 15.0

Tell = Callable[[int, str, bool], None]
"""Arguments: number of cases done, a line about the last one, True if it failed."""


@contextmanager
def progress(title: str, total: int) -> Iterator[Tell]:
    """Yield a function that reports the progress of one section's cases."""
    if sys.stdout.isatty():
        try:
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
        except ImportError:
            pass  # the plain lines below say the same
        else:
            columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
            with Progress(*columns, TextColumn("{task.fields[last]}")) as shown:
                task = shown.add_task(title, total=total, last="")

                def show(done: int, line: str, wrong: bool) -> None:
                    shown.update(task, completed=done, last=line[:80])
                    if wrong:
                        shown.print(line, markup=False)

                yield show
            return
    said = -EVERY_S

    def say(done: int, line: str, wrong: bool) -> None:
        nonlocal said
        if wrong or done == total or time.monotonic() - said >= EVERY_S:
            said = time.monotonic()
            print(f"[{title} {done}/{total}] {line}", flush=True)

    yield say
