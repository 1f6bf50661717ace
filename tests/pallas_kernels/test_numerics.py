"""The error bound of a GEMM holds for every correct order of work and catches real mistakes."""

from __future__ import annotations

import jaxtyping
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pallas_kernels import check_gemm, gemm_error_bound, gemm_reference

BF16 = np.dtype(ml_dtypes.bfloat16)
F16 = np.dtype(np.float16)
F32 = np.dtype(np.float32)
DTYPES = st.sampled_from([BF16, F16, F32])


def random_pair(
    seed: int, m: int, k: int, n: int, dtype: np.dtype, scale: float = 1.0
) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    x = (scale * rng.standard_normal((m, k))).astype(dtype)
    w = rng.standard_normal((k, n)).astype(dtype)
    return x, w


def accumulate(x: np.ndarray, w: np.ndarray, order: np.ndarray) -> np.ndarray:
    """Add the k products one at a time in float32, in the given order."""
    total = np.zeros((x.shape[0], w.shape[1]), np.float32)
    for i in order:
        total += x[:, i : i + 1].astype(np.float32) * w[i : i + 1].astype(np.float32)
    return total


def accumulate_cutting(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """The same, but every addition cuts toward zero, as tensor cores may."""
    total = np.zeros((x.shape[0], w.shape[1]), np.float32)
    for i in range(x.shape[1]):
        exact = total.astype(np.float64) + np.outer(
            x[:, i].astype(np.float64), w[i].astype(np.float64)
        )
        nearest = exact.astype(np.float32)
        too_far = np.abs(nearest.astype(np.float64)) > np.abs(exact)
        total = np.where(too_far, np.nextafter(nearest, np.float32(0)), nearest)
    return total


def in_slices(x: np.ndarray, w: np.ndarray, slices: list[np.ndarray], out: np.dtype) -> np.ndarray:
    """Add partial sums over K into an output of type `out`, slice by slice."""
    total = np.zeros((x.shape[0], w.shape[1]), out)
    for indices in slices:
        part = accumulate(x[:, indices], w[indices], np.arange(len(indices))).astype(out)
        total = (total.astype(np.float32) + part.astype(np.float32)).astype(out)
    return total


@given(
    seed=st.integers(0, 2**32 - 1), m=st.integers(1, 6), k=st.integers(1, 200), n=st.integers(1, 6),
    dtype=DTYPES, out=DTYPES, scale=st.sampled_from([1e-3, 1.0, 10.0]),
)  # fmt: skip
def test_any_order_of_addition_stays_within(
    seed: int, m: int, k: int, n: int, dtype: np.dtype, out: np.dtype, scale: float
) -> None:
    x, w = random_pair(seed, m, k, n, dtype, scale)
    order = np.random.default_rng(seed).permutation(k)
    got = accumulate(x, w, order).astype(out)
    # Rounding to nearest uses half of the bound (and terms of second order); cutting, the rest.
    assert check_gemm(got, x, w).worst_ratio <= 0.51


@given(seed=st.integers(0, 2**32 - 1), k=st.integers(1, 300), dtype=st.sampled_from([BF16, F16]))
def test_cutting_accumulators_stay_within(seed: int, k: int, dtype: np.dtype) -> None:
    x, w = random_pair(seed, 4, k, 4, dtype)
    x = np.abs(x)  # one sign: every cut goes the same way, the worst case
    w = np.abs(w)
    assert check_gemm(accumulate_cutting(x, w), x, w).ok


@given(
    seed=st.integers(0, 2**32 - 1),
    k=st.integers(2, 256),
    parts=st.integers(2, 16),
    out=st.sampled_from([BF16, F16]),
)
def test_partial_sums_in_any_order_stay_within(
    seed: int, k: int, parts: int, out: np.dtype
) -> None:
    parts = min(parts, k)
    x, w = random_pair(seed, 3, k, 5, out)
    rng = np.random.default_rng(seed)
    slices = np.array_split(np.arange(k), parts)
    got = in_slices(x, w, [slices[i] for i in rng.permutation(parts)], F32).astype(out)
    assert check_gemm(got, x, w).ok


def test_partial_sums_in_bf16_are_out_of_bounds() -> None:
    x, w = random_pair(0, 32, 512, 32, BF16)
    got = in_slices(x, w, np.array_split(np.arange(512), 16), BF16)
    assert check_gemm(got, x, w).worst_ratio > 2


@pytest.mark.parametrize("dtype", [BF16, F16, F32])
def test_one_dropped_k_index_is_caught(dtype: np.dtype) -> None:
    x, w = random_pair(1, 64, 512, 64, dtype)
    right = accumulate(x, w, np.arange(512)).astype(dtype)
    wrong = accumulate(x, w, np.arange(511)).astype(dtype)
    assert check_gemm(right, x, w).ok
    assert check_gemm(wrong, x, w).worst_ratio > 6


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_unwritten_elements_are_caught_and_named(bad: float) -> None:
    x, w = random_pair(2, 5, 16, 7, F32)
    got = accumulate(x, w, np.arange(16))
    got[3, 4] = bad
    found = check_gemm(got, x, w)
    assert not found.ok
    assert (found.row, found.column) == (3, 4)


def test_integers_are_exact_and_the_bound_allows_zero_rows() -> None:
    rng = np.random.default_rng(3)
    x = rng.integers(-8, 8, (6, 64)).astype(BF16)
    x[0] = 0
    w = rng.integers(-8, 8, (64, 6)).astype(BF16)
    got = accumulate(x, w, np.arange(64))
    np.testing.assert_array_equal(got, gemm_reference(x, w))
    assert check_gemm(got, x, w).worst_ratio == 0


def test_subnormal_outputs_have_an_absolute_bound() -> None:
    x = np.full((1, 1), 1e-4, F16)
    w = np.full((1, 1), 1.3e-3, F16)
    got = (x.astype(np.float32) @ w.astype(np.float32)).astype(F16)
    error = abs(float(got[0, 0]) - float(gemm_reference(x, w)[0, 0]))
    assert error > float(np.finfo(F16).eps) * float(gemm_reference(x, w)[0, 0])
    assert check_gemm(got, x, w).ok


@settings(max_examples=20)
@given(seed=st.integers(0, 2**32 - 1), m=st.integers(1, 33), k=st.integers(1, 130))
def test_xla_matmul_stays_within(seed: int, m: int, k: int) -> None:
    import jax.numpy as jnp

    x, w = random_pair(seed, m, k, 17, BF16)
    got = jnp.matmul(jnp.asarray(x), jnp.asarray(w), preferred_element_type=jnp.float32)
    assert check_gemm(np.asarray(got.astype(jnp.bfloat16)), x, w).ok


@given(seed=st.integers(0, 2**32 - 1), k=st.integers(1, 64), power=st.integers(-6, 6))
def test_bound_scales_with_the_data(seed: int, k: int, power: int) -> None:
    x, w = random_pair(seed, 3, k, 3, F32)
    factor = np.float32(2.0**power)
    one = gemm_error_bound(x, w, F32)
    np.testing.assert_allclose(gemm_error_bound(x * factor, w, F32), one * factor, rtol=1e-6)
    assert (gemm_error_bound(x, w, BF16) >= one).all()


def test_sums_too_long_for_float32_are_refused() -> None:
    k = (1 << 22) + 1
    x, w = np.ones((1, k), F16), np.ones((k, 1), F16)
    with pytest.raises(ValueError, match="float32 sum"):
        gemm_error_bound(x, w, F32)


def test_shapes_and_types_are_checked_here() -> None:
    """Tests alone have this: pyproject's options, and `tests/conftest.py` for what is left out."""
    with pytest.raises(jaxtyping.TypeCheckError):
        gemm_reference(np.zeros((2, 3), F32), np.zeros((4, 5), F32))
