"""Products of every op in whole numbers, so that a right result equals float64 to the bit."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np

from pallas_kernels.gemm import Config, Gemm, Quantised
from pallas_kernels.grouped_gemm import grouped_gemm
from pallas_kernels.hybrid_gemm import hybrid_gemm, pack_weights
from pallas_kernels.quantized_gemm import from_integers, padded_k, quantized_gemm
from tests.pallas_kernels.interpreting import SMALL, within

CONVERTING = replace(SMALL, tk=128)
"""Tiles for quantised weights."""

EVERY = (0.0, 0.5, 1.0)
"""AsymGEMM alone, both, SymGEMM alone; one mixture has the code of all, and other plans."""

OUTPUT_ONLY = replace(CONVERTING, tm=16, asym=False)
"""The same without AsymGEMM, which wants more rows."""


def clustered(config: Config, size: int) -> Config:
    """Two clusters of `size`, so that both dataflows run."""
    return replace(config, cluster=size, sm_count=2 * size)


def numpy_dtype(name: str) -> np.dtype[Any]:
    return np.dtype(getattr(ml_dtypes, name, name))


@dataclass(frozen=True, kw_only=True)
class Case:
    """One product; with `sizes` of experts, with `weights` of quantised ones."""

    m: int
    k: int
    n: int
    config: Config = SMALL
    sizes: tuple[int, ...] | None = None
    weights: Quantised | None = None
    dtype: str = "bfloat16"
    out_dtype: str | None = None
    w_layout: Any = "kn"
    tiles: bool = False
    alphas: tuple[float, ...] = (0.5,)

    @property
    def op(self) -> str:
        if self.sizes is not None:
            return "grouped_gemm"
        return "hybrid_gemm" if self.weights is None else "quantized_gemm"

    @property
    def out(self) -> str:
        return self.out_dtype or self.dtype

    @property
    def tried(self) -> tuple[float, ...]:
        """Alphas that the configuration has the dataflows for."""
        return self.alphas if self.config.asym else (1.0,)

    @property
    def gemm(self) -> Gemm:
        unit = 64 if self.weights is None else 128
        group = None if self.weights is None else self.weights.group
        return Gemm(
            m=self.m if self.sizes is not None else -(-self.m // 8) * 8,
            k=-(-self.k // unit) * unit if group is None else padded_k(self.k, group),
            n=-(-self.n // 64) * 64,
            dtype=self.dtype,
            out_dtype=self.out,
            w_layout="tiles" if self.tiles else self.w_layout if unit == 64 else "nk",
            quantised=self.weights,
            experts=None if self.sizes is None else len(self.sizes),
        )

    def matrices(self) -> tuple[int, ...]:
        """Sizes in front of a matrix."""
        return () if self.sizes is None else (len(self.sizes),)

    def operands(self, seed: int = 0, stack: tuple[int, ...] = ()) -> tuple[Any, Any, np.ndarray]:
        """Return (x, w as the op takes it, w as float64 [.., K, N])."""
        rng = np.random.default_rng(seed)
        x = rng.integers(-2, 3, (self.m, self.k)).astype(numpy_dtype(self.dtype))
        many = (*stack, *self.matrices())
        if self.weights is None:
            w = rng.integers(-2, 3, (*many, self.k, self.n))
            stored = w if self.w_layout == "kn" else w.swapaxes(-1, -2)
            stored = np.ascontiguousarray(stored).astype(numpy_dtype(self.dtype))
            if self.sizes is None:
                return jnp.asarray(x), pack_weights(stored, self.w_layout, tiles=self.tiles), w
            return jnp.asarray(x), jnp.asarray(stored), w
        return jnp.asarray(x), *self._quantised(rng, many)

    def _quantised(self, rng: np.random.Generator, many: tuple[int, ...]) -> tuple[Any, np.ndarray]:
        weights = self.weights
        assert weights is not None
        low, high = (-8, 8) if weights.kind == "int4" else (-6, 7)
        values = rng.integers(low, high, (*many, self.n, self.k)).astype(np.int8)
        if weights.kind == "float8_e4m3fn":
            values = values.astype(ml_dtypes.float8_e4m3fn)
        size = weights.group or self.k
        groups = -(-self.k // size)
        # of groups and columns they differ by a factor of 8: a wrong one is seen
        scales = 2.0 ** rng.integers(-1, 3, (*many, self.n, groups))
        exact = values.astype(np.float64) * np.repeat(scales, size, -1)[..., : self.k]
        offsets = None
        if weights.offset_dtype:
            offsets = rng.integers(-3, 4, scales.shape).astype(numpy_dtype(weights.offset_dtype))
            exact = exact + np.repeat(offsets.astype(np.float64), size, -1)[..., : self.k]
        packed = from_integers(
            values, scales.astype(numpy_dtype(weights.scale_dtype)), offsets, kind=weights.kind,
            group=weights.group, scale_dtype=weights.scale_dtype,
            offset_dtype=weights.offset_dtype or "float32",
        )  # fmt: skip
        return jax.tree.map(jnp.asarray, packed), exact.swapaxes(-1, -2)

    def right(self, x: Any, w: np.ndarray, sizes: Any = None) -> np.ndarray:
        """Return the product in float64, rounded once; zero where a row has no expert."""
        exact = np.asarray(x, np.float64)
        if self.sizes is None:
            return (exact @ w).astype(np.float32).astype(numpy_dtype(self.out))
        out, begin = np.zeros((self.m, self.n)), 0
        for expert, size in enumerate(self.sizes if sizes is None else sizes):
            rows = slice(begin, begin + int(size))
            out[rows] = exact[rows] @ w[expert]
            begin += int(size)
        return out.astype(np.float32).astype(numpy_dtype(self.out))

    def call(self, x: Any, w: Any, *, sizes: Any = None, **options: Any) -> jax.Array:
        """Call the op; `alpha` and whatever else it takes by name."""
        given = {"config": self.config, "cluster": self.config.cluster, "out_dtype": self.out_dtype}
        given |= options
        if self.op == "hybrid_gemm":
            return hybrid_gemm(x, w, given.pop("alpha", None), **given)
        if self.op == "quantized_gemm":
            return quantized_gemm(x, w, **given)
        layout = {} if self.weights is not None else {"w_layout": self.w_layout}
        rows = np.array(self.sizes) if sizes is None else sizes
        return grouped_gemm(x, w, rows, **layout, **given)

    def run(self, x: Any, w: Any, **options: Any) -> np.ndarray:
        """Run it in interpret mode, with a time limit."""
        return within(lambda: np.asarray(self.call(x, w, backend="interpret", **options)))


def same(ours: np.ndarray, right: np.ndarray) -> None:
    """Fail unless the two are equal to the bit; zeros may have any sign."""
    assert ours.dtype == right.dtype
    np.testing.assert_array_equal(ours.astype(np.float64), right.astype(np.float64))


def poisoned(case: Case, w: Any, sizes: Any) -> Any:
    """Return w with NaN for experts without rows: one that is read spoils what it meets.

    Stored integers have no NaN, their scales have.
    """
    empty = np.asarray(sizes) == 0

    def spoilt(array: Any) -> Any:
        array = np.array(array)
        array[..., empty, :, :] = np.nan
        return jnp.asarray(array)

    if case.weights is None:
        return spoilt(w)
    offsets = None if w.offsets is None else spoilt(w.offsets)
    return replace(w, scales=spoilt(w.scales), offsets=offsets)
