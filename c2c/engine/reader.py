"""Reader of checkpoints into weight files: `python -m c2c.engine.reader`."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import msgspec

from c2c.engine.store import Fetch, Fetched
from c2c.errors import DataError, SettingError
from c2c.transformer import load
from pallas_kernels.host_memory import HostMemoryError

__all__ = ["main"]


def _fetched(ask: Fetch) -> Fetched:
    try:
        load(
            Path(ask.item.path),
            ask.dtype,
            linear=ask.linear,
            pool=ask.item.pool,
            progress=False,
            executables=None,
        )
    except (DataError, SettingError, HostMemoryError) as error:
        return Fetched(failed=str(error))
    return Fetched()


# It reads a line of JSON for each model, writes a line when the file is complete, and ends with its
# input.
def main() -> int:
    """Serve until the input ends; return the status."""
    answers = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)  # prints of libraries go to standard error
    for line in sys.stdin.buffer:
        ask = msgspec.json.decode(line, type=Fetch)
        answers.write(msgspec.json.encode(_fetched(ask)) + b"\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
