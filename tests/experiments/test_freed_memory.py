"""Long runs use the memory again that they have freed."""

from __future__ import annotations

import subprocess
import sys

MEASURED = """
import resource, sys
import numpy as np
if "keep" in sys.argv:
    from experiments.simulation.freed_memory import keep_freed_memory
    keep_freed_memory()
before = 0
for k in range(5):
    np.ones(1 << 23)  # 64 MB, freed at once
    if k == 0:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(*arguments: str) -> int:
    """Return how many pages came anew for the same array, made four times more."""
    # Huge pages would hide how often memory comes and goes.
    run = [sys.executable, "-c", MEASURED, *arguments]
    done = subprocess.run(
        run, capture_output=True, text=True, check=True, env={"NUMPY_MADVISE_HUGEPAGE": "0"}
    )
    return int(done.stdout)


def test_what_is_freed_is_used_again() -> None:
    pages = (64 << 20) // 4096
    assert faults() > 3 * pages  # else the second number says nothing
    assert faults("keep") < pages // 10
