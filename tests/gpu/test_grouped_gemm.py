"""Experts over host weights at real sizes: uneven, empty and single groups."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels import check_gemm
from pallas_kernels import grouped_gemm as grouped
from pallas_kernels import quantized_gemm as quantized
from pallas_kernels.gemm import FAMILY, Gemm, Quantised, choose, scales_weights
from tests.compilations import compilations
from tests.gpu.exact import BACKEND, activations, numbers, placed, same_bits, sampled, sm_count

pytestmark = pytest.mark.gpu

SIZES = {
    "decode of 16 tokens": (128, 16 * 8, 2048, 1536),
    "prefill of 512 tokens": (128, 512 * 8, 2048, 768),
    "eight large experts": (8, 300, 4096, 14336),
}


@pytest.mark.parametrize(("experts", "rows", "k", "n"), SIZES.values(), ids=SIZES.keys())
def test_products(experts: int, rows: int, k: int, n: int) -> None:
    draw = np.random.default_rng(0)
    w = numbers((experts, k, n), "bfloat16", 1, k**-0.5)
    host, x = placed(w), activations(rows, k)
    a = jnp.asarray(x)
    one, last = np.zeros(experts, np.int32), np.zeros(experts, np.int32)
    one[experts // 2] = last[-1] = rows
    spread = np.bincount(draw.integers(0, experts, rows), minlength=experts).astype(np.int32)
    skewed = np.bincount(draw.zipf(1.5, rows) % experts, minlength=experts).astype(np.int32)
    with compilations() as seen:
        for number, sizes in enumerate((spread, skewed, one, last)):
            out = grouped.grouped_gemm(a, host, jnp.asarray(sizes), backend=BACKEND)
            again = grouped.grouped_gemm(a, host, jnp.asarray(sizes), backend=BACKEND)
            assert same_bits(out, again)
            got, start = np.asarray(out), 0
            for expert in np.flatnonzero(sizes)[:12]:
                start, end = int(sizes[:expert].sum()), int(sizes[: expert + 1].sum())
                of = start + sampled(end - start, 2)
                columns = sampled(n, 3)
                check = check_gemm(got[of][:, columns], x[of], w[expert][:, columns])
                assert check.worst_ratio <= 1, f"expert {expert}: {check}"
            if number == 0:
                seen.clear()
    assert len(seen) == 0  # other group sizes are run-time values


QUANTIZED = {
    "int4, decode of 16 tokens": (128, 16 * 8, 2048, 1536, "int4", 128, False),
    "int4 with offsets, decode of one token": (128, 8, 2048, 1536, "int4", 32, True),
    "int8 with offsets, prefill of 512 tokens": (128, 512 * 8, 768, 2048, "int8", 32, True),
    "fp8, a few large experts": (8, 300, 4096, 14336, "float8_e4m3fn", None, False),
    "int4, many rows": (8, 5000, 2048, 1536, "int4", 128, False),
}


def experts_of(
    number: int, k: int, n: int, kind: str, group: int | None, seed: int, *, shifted: bool
) -> Any:
    """Return quantised experts [number, ...] of unit columns, with offsets if `shifted`."""
    draw = np.random.default_rng(seed)
    if not shifted:
        w = draw.standard_normal((number, k, n), np.float32) * np.float32(k**-0.5)
        return quantized.quantize(w, kind, group)
    low, high = (-8, 8) if kind == "int4" else (-128, 128)
    values = draw.integers(low, high, (number, n, k), np.int8)
    scales = draw.uniform(0.5, 1, (number, n, k // (group or k))) * k**-0.5 / high
    offsets = scales * draw.uniform(low, high, scales.shape)
    as_stored = scales.astype(np.float32), offsets.astype(np.float32)
    return quantized.from_integers(values, *as_stored, kind=kind, group=group)


@pytest.mark.parametrize(
    ("experts", "rows", "k", "n", "kind", "group", "shifted"),
    QUANTIZED.values(),
    ids=QUANTIZED.keys(),
)
def test_quantised_experts(
    experts: int, rows: int, k: int, n: int, kind: str, group: int | None, shifted: bool
) -> None:
    draw = np.random.default_rng(0)
    w, x = experts_of(experts, k, n, kind, group, 1, shifted=shifted), activations(rows, k)
    one, last = np.zeros(experts, np.int32), np.zeros(experts, np.int32)
    one[experts // 2], last[-1] = rows, rows - 3  # the last rows belong to nobody
    spread = np.bincount(draw.integers(0, experts, rows), minlength=experts).astype(np.int32)
    a, gemm = jnp.asarray(x), described(rows, k, n, w, experts)
    with compilations() as seen:
        for number, sizes in enumerate((spread, one, last)):
            host = placed(with_nan(w, sizes))
            out = grouped.grouped_gemm(a, host, jnp.asarray(sizes), backend=BACKEND)
            again = grouped.grouped_gemm(a, host, jnp.asarray(sizes), backend=BACKEND)
            assert same_bits(out, again)
            got = np.asarray(out)
            assert (got[int(sizes.sum()) :] == 0).all()
            for expert in np.flatnonzero(sizes)[:8]:
                start, end = int(sizes[:expert].sum()), int(sizes[: expert + 1].sum())
                of, columns = start + sampled(end - start, 2), sampled(n, 3)
                matrix = quantized.matrix_of(w, int(expert))
                exact = np.asarray(quantized.dequantize(matrix), np.float64)[:, columns]
                parts = quantized.magnitudes(matrix)[:, columns] if shifted else None
                bound = quantized.product_error_bound(
                    x[of],
                    exact,
                    got.dtype,
                    weights_scaled=scales_weights(choose(gemm, sm_count=132), gemm),
                    magnitudes=parts,
                )
                # dequantize() rounds scale times number once more than the kernel does
                bound = bound + 2.0**-23 * (np.abs(x[of].astype(np.float64)) @ np.abs(exact))
                error = np.abs(got[of][:, columns] - x[of].astype(np.float64) @ exact)
                assert (error <= bound).all(), f"expert {expert}: {(error / bound).max()}"
            if number == 0:
                seen.clear()
    assert len(seen) == 0  # other group sizes are run-time values


def with_nan(w: Any, sizes: np.ndarray) -> Any:
    """Return w with scales of NaN for experts without rows: none of them may be read."""
    scales = np.array(w.scales)
    scales[sizes == 0] = np.nan
    return replace(w, scales=scales)


def described(rows: int, k: int, n: int, w: Any, experts: int) -> Gemm:
    """Return what is multiplied."""
    weights = Quantised(
        kind=w.kind, group=w.group, offset_dtype=None if w.offsets is None else str(w.offsets.dtype)
    )
    return Gemm(m=rows, k=k, n=n, quantised=weights, w_layout="nk", experts=experts)


@pytest.mark.parametrize("alpha", [0.0, 0.4, 1.0])
@pytest.mark.parametrize("cluster", [1, 2])
def test_every_dataflow(alpha: float, cluster: int) -> None:
    """Experts with more rows than a block has: AsymGEMM, with several K passes, and the hybrid."""
    experts, rows, k, n = 4, 5000, 2048, 1536
    w, x = numbers((experts, k, n), "bfloat16", 1, k**-0.5), activations(rows, k)
    sizes = np.array([13, 0, 3900, 1000], np.int32)
    config = replace(FAMILY["256x128"], cluster=cluster, sm_count=sm_count())
    out = grouped.grouped_gemm(
        jnp.asarray(x), placed(w), jnp.asarray(sizes), alpha=alpha, cluster=cluster, config=config,
        backend=BACKEND,
    )  # fmt: skip
    got = np.asarray(out)
    assert (got[int(sizes.sum()) :] == 0).all()
    for expert in np.flatnonzero(sizes):
        start, end = int(sizes[:expert].sum()), int(sizes[: expert + 1].sum())
        of, columns = start + sampled(end - start, 2), sampled(n, 3)
        check = check_gemm(got[of][:, columns], x[of], w[expert][:, columns])
        assert check.worst_ratio <= 1, f"expert {expert}: {check}"
