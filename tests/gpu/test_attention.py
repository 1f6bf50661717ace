"""Attention at real sizes, against float64 within the derived bound of its tests."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.attention import decode_attention, prefill_attention
from tests.gpu.exact import BACKEND
from tests.pallas_kernels.attention.cases import Case, decoding, paged

pytestmark = pytest.mark.gpu

DECODE_PARTS = 64  # a decode may be cut into so many parts, and its bound allows for merging them

PREFILLS = {
    "prompt": Case(queries=1024, keys=1024, heads=4, kv_heads=1, dim=128),
    "uneven prompt": Case(queries=777, keys=777, heads=2, kv_heads=2, dim=128),
    "window": Case(queries=1500, keys=1500, heads=2, kv_heads=1, dim=128, window=512),
    "chunk over its past": Case(
        queries=256, keys=4096, heads=2, kv_heads=1, dim=128, offsets=(3840,)
    ),
    "batch of lengths": Case(
        queries=64, keys=1024, heads=8, kv_heads=2, dim=128, offsets=(960, 100), lengths=(1024, 164)
    ),
    "64 wide, float16": Case(queries=512, keys=512, heads=4, dim=64, dtype="float16"),
}


@pytest.mark.parametrize("case", PREFILLS.values(), ids=PREFILLS.keys())
def test_prefill(case: Case) -> None:
    q, k, v = map(jnp.asarray, case.arrays)
    out = prefill_attention(q, k, v, **case.options(), backend=BACKEND)
    assert case.exact().worst(np.asarray(out)) <= 1


@pytest.mark.parametrize("page", [16, 64])
@pytest.mark.parametrize("lengths", [(4096,), (1, 63, 64, 65, 1000, 2048), (512,) * 16])
def test_decode(lengths: tuple[int, ...], page: int) -> None:
    keys = -(-max(lengths) // page) * page
    case = decoding(lengths, keys, heads=8, kv_heads=2, dim=128)
    out = decode_attention(*map(jnp.asarray, paged(case, page).arguments), backend=BACKEND)
    assert case.exact(merges=DECODE_PARTS).worst(np.asarray(out)[:, None]) <= 1


def test_the_same_bits_each_time() -> None:
    case = PREFILLS["prompt"]
    q, k, v = map(jnp.asarray, case.arrays)
    first = np.asarray(prefill_attention(q, k, v, backend=BACKEND))
    for _ in range(20):
        again = jax.block_until_ready(prefill_attention(q, k, v, backend=BACKEND))
        np.testing.assert_array_equal(first.view(np.uint16), np.asarray(again).view(np.uint16))
