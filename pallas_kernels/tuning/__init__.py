"""Measure configurations on a device and keep the results for `hybrid_gemm` to choose by."""

from pallas_kernels.tuning.candidates import Candidate, candidates, problems
from pallas_kernels.tuning.tuner import DeviceLostError, Summary, tune

__all__ = ["Candidate", "DeviceLostError", "Summary", "candidates", "problems", "tune"]
