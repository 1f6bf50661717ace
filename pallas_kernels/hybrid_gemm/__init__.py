"""GEMM over weights in host memory."""

from pallas_kernels.gemm.specs import WLayout
from pallas_kernels.hybrid_gemm.api import hybrid_gemm
from pallas_kernels.hybrid_gemm.packing import PackedWeights, pack_weights

__all__ = ["PackedWeights", "WLayout", "hybrid_gemm", "pack_weights"]
