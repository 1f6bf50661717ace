"""Peak memory of `c2c simulate` in this process, in MB, as the last line."""

from __future__ import annotations

import resource
import sys
from pathlib import Path

from experiments.simulate import main

__all__ = ["peak_mb"]


def peak_mb() -> float:
    """Return this process's peak memory, in 1e6 bytes."""
    status = Path("/proc/self/status")
    if status.exists():
        for line in status.read_text(encoding="ascii").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024 / 1e6
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6


if __name__ == "__main__":
    status = main(sys.argv[1:])
    print(peak_mb(), flush=True)
    sys.exit(status)
