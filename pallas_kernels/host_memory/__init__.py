"""Weights in host memory."""

from typing import TYPE_CHECKING, Any

from pallas_kernels.host_memory.cuda import find_runtime
from pallas_kernels.host_memory.errors import (
    HostMemoryError,
    PoolCorruptError,
    PoolError,
    PoolInUseError,
    PoolSpaceError,
    PoolStaleError,
)
from pallas_kernels.host_memory.files import remove_partial, remove_pool, shared_memory_path
from pallas_kernels.host_memory.layout import DTYPES, TensorSpec
from pallas_kernels.host_memory.pool import SharedPool

if TYPE_CHECKING:
    from pallas_kernels.host_memory.arrays import HostArray
    from pallas_kernels.host_memory.operand import (
        host_ref,
        in_host_memory,
        refuse_constant,
        weight_operand,
    )
    from pallas_kernels.host_memory.placement import (
        Placed,
        PlacementReport,
        placement_report,
        to_host,
    )

_LAZY = {
    "HostArray": "arrays",
    **dict.fromkeys(("host_ref", "in_host_memory", "refuse_constant", "weight_operand"), "operand"),
    **dict.fromkeys(("Placed", "PlacementReport", "placement_report", "to_host"), "placement"),
}

__all__ = [
    "DTYPES",
    "HostArray",
    "HostMemoryError",
    "Placed",
    "PlacementReport",
    "PoolCorruptError",
    "PoolError",
    "PoolInUseError",
    "PoolSpaceError",
    "PoolStaleError",
    "SharedPool",
    "TensorSpec",
    "find_runtime",
    "host_ref",
    "in_host_memory",
    "placement_report",
    "refuse_constant",
    "remove_partial",
    "remove_pool",
    "shared_memory_path",
    "to_host",
    "weight_operand",
]


# The pool needs no jax; names that need it are imported on first use.
def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_LAZY[name]}"), name)
