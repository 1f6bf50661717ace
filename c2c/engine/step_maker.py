"""The process that makes machine code of the loop's step: `python -m c2c.engine.step_maker`.

Its input is a length and a pickle of its parent's fleet, rules and state; the input's end, with the
parent's, is its own. It yields to whatever else wants the cores.
"""

from __future__ import annotations

import os
import pickle
import sys
import threading

from c2c.serving.compiled_step import CompiledStep

__all__ = ["main"]

_NICE = 19


def _end_with_parent() -> None:
    os.read(sys.stdin.fileno(), 1)  # a buffer's lock would be held when the interpreter ends
    os._exit(1)


def main() -> int:
    """Make it; return the exit status."""
    os.nice(_NICE)
    source = sys.stdin.buffer
    given = source.read(int.from_bytes(source.read(8), "little"))
    fleet, rules, state = pickle.loads(given)  # noqa: S301 (of its own parent)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    CompiledStep(fleet, rules, state)
    return 0


if __name__ == "__main__":
    sys.exit(main())
