"""GEMM of a mixture of experts whose weights stay in host memory: only experts with rows move."""

from pallas_kernels.grouped_gemm.api import grouped_gemm
from pallas_kernels.grouped_gemm.route import combine, dispatch, sort_by_expert

__all__ = ["combine", "dispatch", "grouped_gemm", "sort_by_expert"]
