"""Processes that measure in turns, on the same cores."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from c2c.errors import SettingError
from experiments.children import Lines

__all__ = ["TurnTaker"]


class TurnTaker(Lines):
    """A process that answers each line on its standard input with a line of JSON.

    Args:
      command: command to run.
      cores: cores that it may use.
      setting: setting to name in the error if the process does not run, and its value.
    """

    def __init__(self, command: Sequence[str], cores: set[int], setting: tuple[str, str]) -> None:
        self._setting = setting
        super().__init__(command, cores=cores)

    def measure(self) -> dict[str, Any]:
        """Take a turn; return its measurements.

        Raises:
          SettingError: the process does not run.
        """
        line = self.line() if self.tell() else None
        if not line:
            self.process.wait()
            raise SettingError(*self._setting, f"a process that answers ({self.why})")
        found: dict[str, Any] = json.loads(line)
        return found
