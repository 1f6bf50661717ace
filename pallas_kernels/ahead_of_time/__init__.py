"""Compilation for absent GPUs."""

from pallas_kernels.ahead_of_time.compiler import Compiler, host_copies, missing, prepare
from pallas_kernels.ahead_of_time.report import CodeReport, problems
from pallas_kernels.ahead_of_time.targets import TARGETS, Target

__all__ = [
    "TARGETS",
    "CodeReport",
    "Compiler",
    "Target",
    "host_copies",
    "missing",
    "prepare",
    "problems",
]
