"""GEMM over weights in host memory: two dataflows and their hybrid in one persistent launch."""

from pallas_kernels.hopper import CLUSTERS
from pallas_kernels.hybrid_gemm.api import hybrid_gemm, plan_launch
from pallas_kernels.hybrid_gemm.config import Config, check_fits, shared_bytes
from pallas_kernels.hybrid_gemm.heuristics import choose, smallest_cluster
from pallas_kernels.hybrid_gemm.packing import PackedWeights, pack_weights
from pallas_kernels.hybrid_gemm.schedule import Plan, partial_sums
from pallas_kernels.hybrid_gemm.specs import MODEL_PROJECTIONS, ROWS, Gemm
from pallas_kernels.hybrid_gemm.traffic import Traffic, launch_traffic

__all__ = [
    "CLUSTERS",
    "MODEL_PROJECTIONS",
    "ROWS",
    "Config",
    "Gemm",
    "PackedWeights",
    "Plan",
    "Traffic",
    "check_fits",
    "choose",
    "hybrid_gemm",
    "launch_traffic",
    "pack_weights",
    "partial_sums",
    "plan_launch",
    "shared_bytes",
    "smallest_cluster",
]
