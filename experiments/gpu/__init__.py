"""Measurements of a GPU, its link to host memory and our kernels: `make gpu`.

A section is a list of cases. Each case runs in a child process with a time limit, and its result is
stored at once, so that a run resumes where the last one stopped. See `docs/gpu.md`.
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
