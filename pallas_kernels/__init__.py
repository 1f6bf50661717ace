"""GPU kernels over weights that stay in host memory; imports nothing of c2c, usable on its own.

Each kernel is a package: `hybrid_gemm`, `quantized_gemm` and `grouped_gemm`, which are one core
(`gemm`), `attention`, `gather_rows` and `woven`; `host_memory` places arrays, `tuning` measures
configurations, `repository` keeps compiled programs and `ahead_of_time` compiles for a GPU that is
not there. They are attributes of this package, imported when they are asked for; here stand what a
device can run and error bounds.
"""

from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

from pallas_kernels.capability import (
    BACKENDS,
    Device,
    KernelUnavailable,
    capabilities,
    device,
    missing,
    require,
)
from pallas_kernels.numerics import check_gemm, gemm_error_bound, gemm_reference

if TYPE_CHECKING:
    from pallas_kernels import (
        ahead_of_time,
        attention,
        gather_rows,
        gemm,
        grouped_gemm,
        host_memory,
        hybrid_gemm,
        quantized_gemm,
        repository,
        tuning,
        woven,
    )

__all__ = [
    "BACKENDS",
    "Device",
    "KernelUnavailable",
    "ahead_of_time",
    "attention",
    "capabilities",
    "check_gemm",
    "device",
    "gather_rows",
    "gemm",
    "gemm_error_bound",
    "gemm_reference",
    "grouped_gemm",
    "host_memory",
    "hybrid_gemm",
    "missing",
    "quantized_gemm",
    "repository",
    "require",
    "tuning",
    "woven",
]


def __getattr__(name: str) -> ModuleType:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return import_module(f"{__name__}.{name}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
