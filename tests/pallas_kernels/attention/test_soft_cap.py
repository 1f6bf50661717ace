"""A cap on scores, of the reference alone."""

from __future__ import annotations

import numpy as np
import pytest

from pallas_kernels.attention import decode_attention, paged_prefill_attention

LENGTH, CAP = 11, 1.5


def arrays() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    q = 3 * rng.standard_normal((1, LENGTH, 4, 8), np.float32)
    k, v = rng.standard_normal((2, 3, 4, 2, 8), np.float32)  # three pages of four tokens
    return q, k, v


def exact(q: np.ndarray, k: np.ndarray, v: np.ndarray, cap: float | None) -> np.ndarray:
    keys, values = (each.reshape(-1, 2, 8).repeat(2, axis=1) for each in (k, v))
    out = np.zeros_like(q[0])
    for i in range(LENGTH):
        scores = np.einsum("hd,shd->hs", q[0, i], keys[: i + 1]) / np.sqrt(8)
        if cap is not None:
            scores = cap * np.tanh(scores / cap)
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        weights /= weights.sum(axis=1, keepdims=True)
        out[i] = np.einsum("hs,shd->hd", weights, values[: i + 1])
    return out


@pytest.mark.parametrize("cap", [None, CAP, 1e6])
def test_scores_are_capped(cap: float | None) -> None:
    q, k, v = arrays()
    tables = np.arange(3, dtype=np.int32)[None]
    expected = exact(q, k, v, cap)
    found = paged_prefill_attention(
        q, k, v, tables, q_offset=0, kv_lengths=LENGTH, soft_cap=cap, backend="auto"
    )
    np.testing.assert_allclose(found[0], expected, atol=2e-6)
    last = decode_attention(q[:, -1], k, v, tables, LENGTH, soft_cap=cap)
    np.testing.assert_allclose(last[0], expected[-1], atol=2e-6)
    apart = np.abs(expected - exact(q, k, v, None)).max()
    assert (apart > 0.05) == (cap == CAP)
