"""GEMM over weights in host memory: two dataflows and their hybrid in one persistent launch."""

from pallas_kernels.hopper import CLUSTERS
from pallas_kernels.hybrid_gemm.api import hybrid_gemm, plan_launch
from pallas_kernels.hybrid_gemm.comparison import Winner, winners
from pallas_kernels.hybrid_gemm.config import Config, check_fits, shared_bytes
from pallas_kernels.hybrid_gemm.heuristics import (
    FAMILY,
    Chosen,
    choice,
    choose,
    explain,
    smallest_cluster,
)
from pallas_kernels.hybrid_gemm.machine import MACHINES, Machine, machine_for, present_machine
from pallas_kernels.hybrid_gemm.packing import PackedWeights, pack_weights
from pallas_kernels.hybrid_gemm.prediction import (
    Prediction,
    best_alpha,
    best_split,
    plans,
    predict,
)
from pallas_kernels.hybrid_gemm.schedule import Plan, sums_shape
from pallas_kernels.hybrid_gemm.specs import MODEL_PROJECTIONS, ROWS, Gemm
from pallas_kernels.hybrid_gemm.traffic import Traffic, launch_traffic

__all__ = [
    "CLUSTERS",
    "FAMILY",
    "MACHINES",
    "MODEL_PROJECTIONS",
    "ROWS",
    "Chosen",
    "Config",
    "Gemm",
    "Machine",
    "PackedWeights",
    "Plan",
    "Prediction",
    "Traffic",
    "Winner",
    "best_alpha",
    "best_split",
    "check_fits",
    "choice",
    "choose",
    "explain",
    "hybrid_gemm",
    "launch_traffic",
    "machine_for",
    "pack_weights",
    "plan_launch",
    "plans",
    "predict",
    "present_machine",
    "shared_bytes",
    "smallest_cluster",
    "sums_shape",
    "winners",
]
