"""Experts over host weights at real sizes: uneven, empty and single groups."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels import check_gemm
from pallas_kernels.host_memory import to_host
from tests.compilations import compilations
from tests.gpu.exact import BACKEND, activations, numbers, same_bits, sampled

grouped = pytest.importorskip(
    "pallas_kernels.grouped_gemm", reason="grouped_gemm is not in this checkout"
)

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
    host, x = to_host(w), activations(rows, k)
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
