"""Measurements of a GPU, of its link to host memory and of our kernels on it: `make gpu`.

Sections of cases, each case in a child process with a time limit; results are kept case by case, so
that a run goes on where the last one stopped. `docs/gpu.md` says how to use it.
"""

from experiments.gpu.cases import SCALES, Case, Context, Row, Scale
from experiments.gpu.timing import Times, seconds_each, time_launches, wait

__all__ = [
    "SCALES",
    "Case",
    "Context",
    "Row",
    "Scale",
    "Times",
    "seconds_each",
    "time_launches",
    "wait",
]
