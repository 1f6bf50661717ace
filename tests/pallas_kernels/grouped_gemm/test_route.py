"""Sorting by expert and back, and the expert layer they make with the GEMM."""

from __future__ import annotations

import inspect

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pallas_kernels.gemm import ROW_MULTIPLE
from pallas_kernels.grouped_gemm import combine, dispatch, grouped_gemm, sort_by_expert
from tests.pallas_kernels.grouped_gemm.cases import operands

# every shape is compiled anew, numbers are not
SHAPES = ((1, 1, 1), (1, 4, 9), (17, 3, 5), (30, 2, 2))


@given(shape=st.sampled_from(SHAPES), seed=st.integers(0, 2**32 - 1))
def test_pairs_are_sorted_counted_and_brought_back(shape: tuple[int, int, int], seed: int) -> None:
    tokens, per_token, experts = shape
    rng = np.random.default_rng(seed)
    ids = rng.integers(-1, experts + 1, (tokens, per_token))  # some of no expert
    order, sizes = (np.asarray(a) for a in sort_by_expert(jnp.asarray(ids, jnp.int32), experts))
    assert sorted(order) == list(range(ids.size))
    np.testing.assert_array_equal(sizes, [(ids == e).sum() for e in range(experts)])
    flat, begin = ids.reshape(-1), 0
    for expert, size in enumerate(sizes):
        mine = order[begin : begin + size]
        assert (flat[mine] == expert).all()
        assert (np.diff(mine) > 0).all()  # tokens keep their order: results repeat
        begin += size
    x = rng.standard_normal((tokens, 3)).astype(np.float32)
    weights = rng.standard_normal((tokens, per_token)).astype(np.float32)
    rows = dispatch(jnp.asarray(x), jnp.asarray(order), per_token)
    np.testing.assert_array_equal(rows, x[order // per_token])
    back = combine(rows, jnp.asarray(order), jnp.asarray(weights))
    expected = x.astype(np.float64) * weights.astype(np.float64).sum(1, keepdims=True)
    scale = np.abs(x) * np.abs(weights).sum(1, keepdims=True)
    assert (np.abs(back - expected) <= per_token * np.finfo(np.float32).eps * scale).all()


def test_an_expert_layer_under_jit() -> None:
    """Router to combined output with everything traced, against a loop over tokens in float64."""
    tokens, per_token, experts = 13, 2, 6
    x, w = operands(tokens, 64, 128, experts)
    rng = np.random.default_rng(1)
    ids = np.argsort(rng.random((tokens, experts)), 1)[:, :per_token].astype(np.int32)
    weights = rng.random((tokens, per_token)).astype(np.float32)

    @jax.jit
    def layer(x: jax.Array, w: jax.Array, ids: jax.Array, weights: jax.Array) -> jax.Array:
        order, sizes = sort_by_expert(ids, experts)
        rows = dispatch(x, order, per_token)
        out = grouped_gemm(rows, w, sizes, out_dtype=jnp.float32, backend="reference")
        return combine(out, order, weights)

    out = layer(x, w, ids, weights)
    exact = np.einsum(
        "tkc,tkcn,tk->tn", x[:, None].repeat(2, 1).astype(np.float64), w[ids].astype(np.float64),
        weights,
    )  # fmt: skip
    size = np.einsum(
        "tc,tkcn,tk->tn", np.abs(x).astype(np.float64), np.abs(w[ids]).astype(np.float64), weights
    )
    # 64 products, a weight and two terms, each within eps of float32
    assert (np.abs(out - exact) <= (64 + per_token + 1) * np.finfo(np.float32).eps * size).all()


def test_combine_keeps_the_type_of_its_rows() -> None:
    rows = jnp.ones((ROW_MULTIPLE, 2), ml_dtypes.bfloat16)
    order, _ = sort_by_expert(jnp.zeros((4, 2), jnp.int32), 1)
    out = combine(rows, order, jnp.full((4, 2), 0.5, jnp.float32))
    assert out.dtype == rows.dtype
    assert (out == 1).all()


def test_wrong_use_says_what_is_wrong() -> None:
    with pytest.raises(ValueError, match=r"expert_ids of shape \(4,\): expected \[tokens"):
        inspect.unwrap(sort_by_expert)(jnp.zeros(4, jnp.int32), 2)
    with pytest.raises(ValueError, match="experts=0: expected a number above 0"):
        sort_by_expert(jnp.zeros((4, 1), jnp.int32), 0)
