"""GEMM over quantised weights in host memory."""

from pallas_kernels.gemm.layout import unpack_int4
from pallas_kernels.gemm.specs import KINDS, SCALE_DTYPES, Kind, bits
from pallas_kernels.quantized_gemm.api import quantized_gemm
from pallas_kernels.quantized_gemm.numerics import product_error_bound, quantization_error_bound
from pallas_kernels.quantized_gemm.quantization import dequantize, magnitudes, quantize
from pallas_kernels.quantized_gemm.rows import from_integers, integer_rows, quantize_rows
from pallas_kernels.quantized_gemm.weights import (
    QuantizedWeights,
    empty_weights,
    matrix_of,
    padded_k,
    storage_shapes,
)

__all__ = [
    "KINDS",
    "SCALE_DTYPES",
    "Kind",
    "QuantizedWeights",
    "bits",
    "dequantize",
    "empty_weights",
    "from_integers",
    "integer_rows",
    "magnitudes",
    "matrix_of",
    "padded_k",
    "product_error_bound",
    "quantization_error_bound",
    "quantize",
    "quantize_rows",
    "quantized_gemm",
    "storage_shapes",
    "unpack_int4",
]
