"""One small product of a kernel, to run under compute-sanitizer.

    python -m experiments.gpu.kernels.sanitized <kernel> <context as JSON>

The product is small, since every access is watched: a few tiles for each CTA, which pass all phases
of the kernel. The exit status is 1 if the product is wrong.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import jax.numpy as jnp
import numpy as np

from experiments.gpu import Context
from pallas_kernels import grouped_gemm as grouped
from pallas_kernels import quantized_gemm as quantized
from pallas_kernels.host_memory import to_host
from pallas_kernels.hybrid_gemm import hybrid_gemm

KERNELS = ("hybrid", "grouped", "quantized")
M, K, N = 72, 512, 512


def product(kernel: str, context: Context) -> tuple[np.ndarray, np.ndarray]:
    """Return a kernel's product and the exact one, both as float64 [M, N]."""
    draw, backend = np.random.default_rng(context.seed), context.backend
    x = jnp.asarray(draw.standard_normal((M, K), np.float32), jnp.bfloat16)
    w = draw.standard_normal((2, K, N), np.float32) * np.float32(K**-0.5)
    exact = np.asarray(x, np.float64)
    placed: Any = to_host if context.weights == "host" else lambda w: w
    if kernel == "grouped":
        experts, sizes = jnp.asarray(w, jnp.bfloat16), jnp.array([30, M - 30], jnp.int32)
        out: Any = grouped.grouped_gemm(x, placed(experts), sizes, backend=backend)
        of = np.asarray(experts, np.float64)
        return np.asarray(out, np.float64), np.concatenate([exact[:30] @ of[0], exact[30:] @ of[1]])
    if kernel == "quantized":
        packed = quantized.quantize(w[0], "int4", group=32)
        out = quantized.quantized_gemm(x, placed(packed), backend=backend)
        return np.asarray(out, np.float64), exact @ np.asarray(
            quantized.dequantize(packed), np.float64
        )
    stored = jnp.asarray(w[0], jnp.bfloat16)
    out = hybrid_gemm(x, placed(stored), 0.5, cluster=2, backend=backend)
    return np.asarray(out, np.float64), exact @ np.asarray(stored, np.float64)


def main(arguments: list[str]) -> int:
    """Run the kernel once; return the exit status."""
    kernel, context = arguments
    out, right = product(kernel, Context(**json.loads(context)))
    error = float(np.linalg.norm(out - right) / np.linalg.norm(right))
    print(f"{kernel}: relative error {error:.2g}")
    return int(not error < 2.0**-6)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
