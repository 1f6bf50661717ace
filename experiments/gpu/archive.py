"""Archive of a run: updated while the run goes on, complete however it ends."""

from __future__ import annotations

import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

from c2c.atomic import write_text
from experiments.gpu.files import pack

SHARE = 0.05  # of the time that updates of the archive may take


class Keeper:
    """Rewrites summary and archive after every case, each atomically.

    A killed run leaves the last version. If cases end faster than both can be written, writing
    waits for a longer case (`catch_up`) or until it takes at most `SHARE` of the time. `summarise`
    writes the summary into the folder and returns its text, which is also kept beside the archive.
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
        """Path of the summary, beside the archive.

        >>> Keeper(Path("nvidia-h200"), Path("out/gpu.tar.gz"), str).summary.name
        'gpu.md'
        """
        return self._archive.with_name(self._archive.name.removesuffix(".tar.gz") + ".md")

    def refresh(self, *, now: bool = False) -> str:
        """Write summary and archive; return the summary's text, "" if writing is put off.

        Writing is put off while it has taken more than `SHARE` of the time, unless `now`. After a
        write error the earlier files stay and the run goes on.
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
            self._tell(f"{self._archive.name} cannot be updated: {error}")
        ended = self._clock()
        self._next = ended + (ended - begun) / SHARE
        return text

    def _text(self) -> str:
        try:
            return self._summarise()
        except Exception:  # noqa: BLE001 - rows are kept even if they cannot be summarised
            self._tell(why := f"There is no summary:\n\n{traceback.format_exc()}")
            return why

    def _tell(self, what: str) -> None:
        if what not in self._told:
            print(what, file=sys.stderr, flush=True)
        self._told.add(what)

    def catch_up(self) -> None:
        """Write both if `refresh` put it off. Call this while idle."""
        if self._due:
            self.refresh(now=True)
