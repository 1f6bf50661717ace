"""Weights and activations of the tests, and the product they should give."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np

from pallas_kernels.gemm.layout import unpack_int4
from pallas_kernels.quantized_gemm import (
    QuantizedWeights,
    from_integers,
    product_error_bound,
    quantize,
)


@dataclass(frozen=True, kw_only=True)
class Case:
    m: int
    k: int
    n: int
    kind: Any = "int8"
    group: int | None = None
    dtype: str = "bfloat16"
    out_dtype: str | None = None
    scale_dtype: str = "float32"
    offset_dtype: str | None = None

    def weights(self, seed: int = 0) -> QuantizedWeights:
        rng = np.random.default_rng(seed)
        # scales of groups and columns differ by orders of magnitude: a wrong one is seen
        sizes = 10.0 ** rng.uniform(-2, 1, (-(-self.k // 64), self.n))
        sizes = np.repeat(sizes, 64, 0)[: self.k]
        if self.offset_dtype or self.scale_dtype == "float16":
            return self._integers(rng, sizes[:: self.group or self.k].T)
        w = rng.standard_normal((self.k, self.n)) * sizes
        return quantize(w.astype(np.float32), self.kind, self.group, scale_dtype=self.scale_dtype)

    def _integers(self, rng: np.random.Generator, sizes: np.ndarray) -> QuantizedWeights:
        """Weights as a checkpoint has them, with offsets of the size of scaled numbers."""
        low, high = (-8, 8) if self.kind == "int4" else (-128, 128)
        values = rng.integers(low, high, (self.n, self.k)).astype(np.int8)
        scales = sizes * rng.uniform(0.5, 1, sizes.shape)
        offsets = scales * rng.uniform(low, high, sizes.shape)
        return from_integers(
            values,
            scales.astype(numpy_dtype(self.scale_dtype)),
            offsets.astype(numpy_dtype(self.offset_dtype)) if self.offset_dtype else None,
            kind=self.kind,
            group=self.group,
            scale_dtype=self.scale_dtype,
            offset_dtype=self.offset_dtype or "float32",
        )

    def activations(self, seed: int = 1) -> jax.Array:
        rng = np.random.default_rng(seed)
        return jnp.asarray(rng.standard_normal((self.m, self.k)).astype(numpy_dtype(self.dtype)))


def numpy_dtype(name: str) -> np.dtype[Any]:
    return np.dtype(getattr(ml_dtypes, name, name))


def exact_weights(qw: QuantizedWeights) -> np.ndarray:
    """Dequantise in float64, as [.., K, N]; of the op's own code only the unpacking is used."""
    data, scales = np.asarray(qw.data), np.asarray(qw.scales, np.float64)
    stored = (unpack_int4(data) if qw.kind == "int4" else data).astype(np.float64)
    size = stored.shape[-1] // scales.shape[-2]
    full = stored.swapaxes(-1, -2) * np.repeat(scales, size, axis=-2)
    if qw.offsets is not None:
        full = full + np.repeat(np.asarray(qw.offsets, np.float64), size, axis=-2)
    return np.asarray(full[..., : qw.k, : qw.n])


def worst(out: np.ndarray, x: Any, w: np.ndarray, **more: Any) -> float:
    """Return the largest error in units of the bound; NaN counts as infinite.

    Args:
      out: the product.
      x: activations.
      w: exact weights [K, N].
      **more: of `product_error_bound`.
    """
    x = np.asarray(x)
    bound = product_error_bound(x, w, out.dtype, **more)
    error = np.abs(out.astype(np.float64) - x.astype(np.float64) @ w)
    assert error.shape == bound.shape
    return float(np.where(np.isfinite(error), error / bound, np.inf).max())
