"""CPU time of a whole command."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Sequence

from c2c.errors import DataError

__all__ = ["timed"]

_SAID = 400  # most characters of a command's last line


def timed(
    name: str, command: Sequence[object], *, limit_s: float, stdin: str = ""
) -> tuple[float, float, str]:
    """Run a command; return CPU seconds, wall seconds and output."""
    begun, before = time.perf_counter(), os.times()
    try:
        done = subprocess.run(  # noqa: S603 (our command)
            list(map(str, command)),
            input=stdin,
            capture_output=True,
            text=True,
            timeout=limit_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise DataError(name, f"took more than {limit_s:.0f} s") from None
    if done.returncode != 0:
        last = done.stderr.strip().splitlines()[-1:] or [""]
        raise DataError(name, f"ended with status {done.returncode}: {last[0][:_SAID]}")
    after = os.times()
    used = after.children_user + after.children_system
    cpu_s = used - before.children_user - before.children_system
    return cpu_s, time.perf_counter() - begun, done.stdout
