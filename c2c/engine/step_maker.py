"""Process that compiles the loop's step: `python -m c2c.engine.step_maker`."""

from __future__ import annotations

import os
import pickle
import sys
import threading

from c2c.serving.loop import Step
from c2c.serving.tables.state import Loop

__all__ = ["main"]

_NICE = 19


def _end_with_parent() -> None:
    os.read(sys.stdin.fileno(), 1)  # a buffered read would hold a lock at exit
    os._exit(1)


# Its input is a length and a pickle of the parent's fleet, rules and state. It runs at the lowest
# priority and ends with its input, so with the parent.
def main() -> int:
    """Compile the step; return the exit status."""
    os.nice(_NICE)
    source = sys.stdin.buffer
    payload = source.read(int.from_bytes(source.read(8), "little"))
    fleet, rules, state = pickle.loads(payload)  # noqa: S301 (from the parent process)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    Step(Loop(fleet, rules, state), compiled=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
