"""The archive of a run: as new as its results while it runs, whole however it ends."""

from __future__ import annotations

import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

from c2c.atomic import write_text
from experiments.gpu.files import pack

SHARE = 0.05  # of the time may go into keeping the archive new


class Keeper:
    """Writes summary and archive anew, each in one step, after every case.

    A run may be killed at any time, and what it leaves is then what was written last. Where cases
    end faster than that can be written, it waits for one that takes longer, or for its share of the
    time. `summarise` writes the summary into the folder and returns its text, which stands beside
    the archive too.
    """

    def __init__(
        self,
        folder: Path,
        archive: Path,
        summarise: Callable[[], str],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._folder, self._archive, self._summarise = folder, archive, summarise
        self._clock, self._next = clock, -1.0
        self._told, self._due = set[str](), False

    @property
    def summary(self) -> Path:
        """The file with the summary, beside the archive.

        >>> Keeper(Path("nvidia-h200"), Path("out/gpu.tar.gz"), str).summary.name
        'gpu.md'
        """
        return self._archive.with_name(self._archive.name.removesuffix(".tar.gz") + ".md")

    def refresh(self, *, now: bool = False) -> str:
        """Write both, unless they have taken more than their share; return the summary's text.

        Where there is no room for them the last ones stay, and the run goes on.
        """
        begun = self._clock()
        self._due = not now and begun < self._next
        if self._due:
            return ""
        text = self._text()
        try:
            write_text(self.summary, text)
            pack(self._folder, self._archive)
        except OSError as error:
            self._tell(f"{self._archive.name} stays as it was: {error}")
        ended = self._clock()
        self._next = ended + (ended - begun) / SHARE
        return text

    def _text(self) -> str:
        try:
            return self._summarise()
        except Exception:  # noqa: BLE001 - rows nobody has seen before must come home all the same
            self._tell(why := f"There is no summary:\n\n{traceback.format_exc()}")
            return why

    def _tell(self, what: str) -> None:
        if what not in self._told:
            print(what, file=sys.stderr, flush=True)
        self._told.add(what)

    def catch_up(self) -> None:
        """Write both if that was put off; to be called while nothing else is to be done."""
        if self._due:
            self.refresh(now=True)
