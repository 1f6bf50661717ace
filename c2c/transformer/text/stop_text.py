"""Stop strings in streamed text."""

from __future__ import annotations

from collections.abc import Sequence

from c2c.errors import SettingError

__all__ = ["StopText"]


class StopText:
    """Filter of text pieces that emits only text certainly before any stop string.

    The first complete stop string counts, the longest if several end together.

    >>> text = StopText(["###"])
    >>> text.push("one #"), text.push("two ##"), text.push("# three"), text.found
    ('one ', '#two ', '', '###')
    """

    def __init__(self, stops: Sequence[str], *, is_kept: bool = False, least: int = 0) -> None:
        """Set the stop strings; a stop counts if it ends after `least` pieces.

        `is_kept`: a found one is part of the text.

        Raises:
          SettingError: one is empty.
        """
        if not all(stops):
            raise SettingError("stop", list(stops), "strings that are not empty")
        self.found: str | None = None  # the stop string that ended the text
        self._stops, self._is_kept, self._least = tuple(stops), is_kept, least
        self._held = ""

    def push(self, piece: str) -> str:
        """Add a piece; return new text, empty after a stop string."""
        if self.found is not None:
            return ""
        before, self._least = len(self._held), self._least - 1
        self._held += piece
        places = ((self._held.find(s, max(0, before + 1 - len(s))), s) for s in self._stops)
        ends = [(index + len(stop), -len(stop), stop) for index, stop in places if index >= 0]
        if ends and self._least < 0:
            end, _, self.found = min(ends)
            out, self._held = self._held[: end if self._is_kept else end - len(self.found)], ""
            return out
        overlap = max((_overlap(self._held, stop) for stop in self._stops), default=0)
        out = self._held[: len(self._held) - overlap]
        self._held = self._held[len(out) :]
        return out

    def finish(self) -> str:
        """Return text held back for a stop string."""
        out, self._held = self._held, ""
        return out


def _overlap(text: str, stop: str) -> int:
    longest = min(len(text), len(stop) - 1)
    return next((n for n in range(longest, 0, -1) if text.endswith(stop[:n])), 0)
