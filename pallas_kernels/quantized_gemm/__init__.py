"""GEMM over quantised weights in host memory, dequantised on their way into the tensor cores."""

from pallas_kernels.quantized_gemm.api import quantized_gemm
from pallas_kernels.quantized_gemm.config import Config, check_fits, scales_weights, shared_bytes
from pallas_kernels.quantized_gemm.heuristics import choose
from pallas_kernels.quantized_gemm.numerics import product_error_bound, quantization_error_bound
from pallas_kernels.quantized_gemm.packing import (
    QuantizedWeights,
    dequantize,
    quantize,
    unpack_int4,
)
from pallas_kernels.quantized_gemm.specs import KINDS, Kind, QuantizedGemm
from pallas_kernels.quantized_gemm.traffic import Traffic, launch_traffic

__all__ = [
    "KINDS",
    "Config",
    "Kind",
    "QuantizedGemm",
    "QuantizedWeights",
    "Traffic",
    "check_fits",
    "choose",
    "dequantize",
    "launch_traffic",
    "product_error_bound",
    "quantization_error_bound",
    "quantize",
    "quantized_gemm",
    "scales_weights",
    "shared_bytes",
    "unpack_int4",
]
