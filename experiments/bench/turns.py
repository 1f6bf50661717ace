"""Processes that take turns: each measures when it is asked to, with the same cores."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from typing import Any

from c2c.errors import SettingError

__all__ = ["TurnTaker", "usable_cores"]


def usable_cores(most: int = 0) -> set[int]:
    """Return the cores this process may use, the first `most` of them; 0 for all."""
    present = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    present = present or list(range(os.cpu_count() or 1))
    return set(present[: most or None])


class TurnTaker:
    """A process that answers each line on its standard input with a line of JSON.

    Args:
      command: what to run; it must not write much to standard error.
      cores: it may use.
      setting: whose fault it is when the process does not run, and its value.
    """

    def __init__(self, command: Sequence[str], cores: set[int], setting: tuple[str, str]) -> None:
        self._setting = setting
        self._process = subprocess.Popen(  # noqa: S603 - our own script
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        if hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(self._process.pid, cores)

    def __enter__(self) -> TurnTaker:
        return self

    def measure(self) -> dict[str, Any]:
        """Take a turn.

        Raises:
          SettingError: the process does not run.
        """
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            print(file=process.stdin, flush=True)
            line = process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            _, errors = process.communicate()
            last = (errors.strip() or "no message").splitlines()[-1]
            raise SettingError(*self._setting, f"a process that runs ({last})")
        found: dict[str, Any] = json.loads(line)
        return found

    def __exit__(self, *_error: object) -> None:
        self._process.kill()
        self._process.communicate()
