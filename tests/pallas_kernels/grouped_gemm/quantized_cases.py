"""Quantised experts, and what a right product of them is."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import jax.numpy as jnp
import numpy as np

from pallas_kernels.grouped_gemm import QuantizedGroupedGemm
from pallas_kernels.grouped_gemm.quantized_api import describe
from pallas_kernels.quantized_gemm import (
    Config,
    QuantizedWeights,
    from_integers,
    magnitudes,
    matrix_of,
    quantize,
    scales_weights,
)
from tests.pallas_kernels.quantized_gemm.cases import exact_weights, numpy_dtype, worst

SMALL = Config(
    tm=16, tn=64, x_columns=64, w_stages=3, x_stages=2, warpgroups=1, cluster=1, sm_count=3
)


@dataclass(frozen=True, kw_only=True)
class Case:
    sizes: tuple[int, ...]
    t: int
    k: int = 256
    n: int = 64
    kind: Any = "int8"
    group: int | None = None
    dtype: str = "bfloat16"
    out_dtype: str | None = None
    scale_dtype: str = "float32"
    offset_dtype: str | None = None
    config: Config = SMALL

    def weights(self, seed: int = 0, stack: tuple[int, ...] = ()) -> QuantizedWeights:
        """Experts whose scales differ by orders of magnitude: a wrong one is seen."""
        rng = np.random.default_rng(seed)
        matrices = (*stack, len(self.sizes))
        groups = -(-self.k // (self.group or self.k))
        scales = 10.0 ** rng.uniform(-2, 1, (*matrices, self.n, groups))
        if self.kind == "float8_e4m3fn":
            w = rng.standard_normal((*matrices, self.n, self.k)) * scales.repeat(
                self.group or self.k, -1
            )
            flat = quantize(
                w.reshape(-1, self.n, self.k).astype(np.float32), self.kind, self.group, "nk"
            )
            data, scales = (a.reshape(*matrices, *a.shape[1:]) for a in (flat.data, flat.scales))
            return replace(flat, data=data, scales=scales)
        low, high = (-8, 8) if self.kind == "int4" else (-128, 128)
        values = rng.integers(low, high, (*matrices, self.n, self.k)).astype(np.int8)
        offsets = scales * rng.uniform(low, high, scales.shape)
        return from_integers(
            values,
            scales.astype(numpy_dtype(self.scale_dtype)),
            offsets.astype(numpy_dtype(self.offset_dtype)) if self.offset_dtype else None,
            kind=self.kind,
            group=self.group,
            scale_dtype=self.scale_dtype,
            offset_dtype=self.offset_dtype or "float32",
        )

    def activations(self, seed: int = 1) -> np.ndarray:
        rng = np.random.default_rng(seed)
        return rng.standard_normal((self.t, self.k)).astype(numpy_dtype(self.dtype))

    def gemm(self) -> QuantizedGroupedGemm:
        types = {"scales": self.scale_dtype}
        if self.offset_dtype:
            types["offsets"] = self.offset_dtype
        return describe(
            self.weights(),
            t=self.t,
            dtype=self.dtype,
            out_dtype=self.out_dtype,
            stack=(len(self.sizes),),
            types=types,
        )


def poisoned(w: QuantizedWeights, sizes: Any) -> QuantizedWeights:
    """Return w with NaN for experts without rows: what is read of one spoils what it meets.

    Stored integers have no NaN: that they are not read either is seen in the counted bytes.
    """
    empty = np.asarray(sizes) == 0

    def spoilt(array: Any) -> Any:
        array = np.array(array)
        array[..., empty, :, :] = np.nan
        return jnp.asarray(array)

    return replace(
        w,
        data=spoilt(w.data) if w.kind == "float8_e4m3fn" else jnp.asarray(w.data),
        scales=spoilt(w.scales),
        offsets=None if w.offsets is None else spoilt(w.offsets),
    )


def assert_right(case: Case, out: np.ndarray, w: QuantizedWeights, sizes: Any = None) -> None:
    """Fail unless every row is its expert's product within the bound, or zero without one."""
    x = case.activations()
    assert out.shape == (case.t, case.n)
    scaled = scales_weights(case.config, case.gemm().expert)
    begin = 0
    for expert, size in enumerate(case.sizes if sizes is None else sizes):
        rows = slice(begin, begin + int(size))
        if size:
            one = matrix_of(w, expert)
            parts = None if w.offsets is None else magnitudes(one)
            ratio = worst(
                out[rows], x[rows], exact_weights(one), magnitudes=parts, weights_scaled=scaled
            )
            assert ratio <= 1, (expert, ratio)
        begin += int(size)
    assert (out[begin:] == 0).all()
