"""GEMM of a mixture of experts with weights in host memory: only experts with rows are read."""

from pallas_kernels.grouped_gemm.api import grouped_gemm
from pallas_kernels.grouped_gemm.route import combine, dispatch, sort_by_expert

__all__ = ["combine", "dispatch", "grouped_gemm", "sort_by_expert"]
