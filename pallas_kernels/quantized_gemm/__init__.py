"""GEMM over quantised weights in host memory, dequantised on their way into the tensor cores."""
