"""GPU kernels over weights that stay in host memory; imports nothing of c2c, usable on its own."""

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

__all__ = [
    "BACKENDS",
    "Device",
    "KernelUnavailable",
    "capabilities",
    "check_gemm",
    "device",
    "gemm_error_bound",
    "gemm_reference",
    "missing",
    "require",
]
