"""GEMM of a mixture of experts whose weights stay in host memory: only experts with rows move."""

from pallas_kernels.grouped_gemm.api import grouped_gemm
from pallas_kernels.grouped_gemm.config import Config, check_fits, shared_bytes
from pallas_kernels.grouped_gemm.heuristics import choose, smallest_cluster
from pallas_kernels.grouped_gemm.programs import program, programs
from pallas_kernels.grouped_gemm.quantized import QuantizedGroupedGemm, choose_quantized
from pallas_kernels.grouped_gemm.route import combine, dispatch, sort_by_expert
from pallas_kernels.grouped_gemm.specs import MODEL_EXPERTS, Experts, GroupedGemm
from pallas_kernels.grouped_gemm.traffic import Traffic, launch_traffic

__all__ = [
    "MODEL_EXPERTS",
    "Config",
    "Experts",
    "GroupedGemm",
    "QuantizedGroupedGemm",
    "Traffic",
    "check_fits",
    "choose",
    "choose_quantized",
    "combine",
    "dispatch",
    "grouped_gemm",
    "launch_traffic",
    "program",
    "programs",
    "shared_bytes",
    "smallest_cluster",
    "sort_by_expert",
]
