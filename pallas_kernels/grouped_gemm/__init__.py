"""GEMM of a mixture of experts with weights in host memory."""

from pallas_kernels.grouped_gemm.api import grouped_gemm

__all__ = ["grouped_gemm"]
