"""GPU kernels over weights that stay in host memory."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from pallas_kernels.capability import (
    BACKENDS,
    Device,
    KernelUnavailable,
    capabilities,
    device,
    missing,
    require,
)

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
        woven,
    )
    from pallas_kernels.numerics import check_gemm, gemm_error_bound, gemm_reference

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
    "woven",
]


_NUMERICS = ("check_gemm", "gemm_error_bound", "gemm_reference")


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name in _NUMERICS:
        return getattr(import_module(f"{__name__}.numerics"), name)
    return import_module(f"{__name__}.{name}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
