"""The GEMM core with exact counts and predicted times."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from pallas_kernels.gemm.config import Config, check_fits, scales_weights, shared_bytes
from pallas_kernels.gemm.heuristics import FAMILY, Chosen, choice, choose, explain, smallest_cluster
from pallas_kernels.gemm.machine import MACHINES, Machine, machine_for, present_machine
from pallas_kernels.gemm.prediction import best_alpha, plans, predict
from pallas_kernels.gemm.schedule import Counts, Plan, counts, sums_shape
from pallas_kernels.gemm.specs import (
    MODEL_EXPERTS,
    ROW_MULTIPLE,
    W_LAYOUTS,
    Experts,
    Gemm,
    Quantised,
    WLayout,
)
from pallas_kernels.gemm.times import Prediction, Rates, busy_s, predicted
from pallas_kernels.gemm.traffic import Traffic, launch_traffic
from pallas_kernels.hopper import CLUSTERS

if TYPE_CHECKING:
    from pallas_kernels.gemm.api import plan_launch
    from pallas_kernels.gemm.launch import launch, tables_of
    from pallas_kernels.gemm.programs import program

__all__ = [
    "CLUSTERS",
    "FAMILY",
    "MACHINES",
    "MODEL_EXPERTS",
    "ROW_MULTIPLE",
    "W_LAYOUTS",
    "Chosen",
    "Config",
    "Counts",
    "Experts",
    "Gemm",
    "Machine",
    "Plan",
    "Prediction",
    "Quantised",
    "Rates",
    "Traffic",
    "WLayout",
    "best_alpha",
    "busy_s",
    "check_fits",
    "choice",
    "choose",
    "counts",
    "explain",
    "launch",
    "launch_traffic",
    "machine_for",
    "plan_launch",
    "plans",
    "predict",
    "predicted",
    "present_machine",
    "program",
    "scales_weights",
    "shared_bytes",
    "smallest_cluster",
    "sums_shape",
    "tables_of",
]

_WITH_JAX = {"launch": "launch", "plan_launch": "api", "program": "programs", "tables_of": "launch"}


# Names imported above need no jax; the others are imported on first use.
def __getattr__(name: str) -> Any:
    if name not in _WITH_JAX:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_WITH_JAX[name]}"), name)
