"""Arguments of `hybrid_gemm`: accepted, refused with a reason, and not compiled again."""

from __future__ import annotations

import inspect
import subprocess
import sys
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pallas_kernels import check_gemm
from pallas_kernels.gemm import Config, Gemm, Quantised, check_fits
from pallas_kernels.hybrid_gemm import PackedWeights, hybrid_gemm, pack_weights
from tests.compilations import compilations
from tests.pallas_kernels.interpreting import SMALL, operands

X, W, _ = operands(72, 128, 192)
STACK = jnp.stack([jnp.asarray(W)] * 2)


@pytest.mark.slow
@settings(max_examples=15)  # each shape is compiled
@given(
    m=st.integers(1, 20), k=st.integers(1, 140), n=st.integers(1, 140),
    seed=st.integers(0, 2**32 - 1), dtype=st.sampled_from(["bfloat16", "float16"]),
    f32=st.booleans(), w_layout=st.sampled_from(["kn", "nk"]), alpha=st.floats(0, 1),
)  # fmt: skip
def test_reference_is_within_the_bound_for_packed_weights(
    m: int, k: int, n: int, seed: int, dtype: str, f32: bool, w_layout: Any, alpha: float
) -> None:
    x, stored, w = operands(m, k, n, seed=seed, dtype=dtype, w_layout=w_layout)
    out = hybrid_gemm(
        x, pack_weights(stored, w_layout), alpha, out_dtype="float32" if f32 else None,
        backend="reference",
    )  # fmt: skip
    assert out.shape == (m, n)
    assert check_gemm(np.asarray(out), np.asarray(x), w).ok


def test_packing_adds_zeros_only_and_copies_nothing_without_need() -> None:
    _, w, _ = operands(1, 70, 130)
    packed = pack_weights(w)
    assert isinstance(packed.data, np.ndarray)
    assert packed.data.shape == (128, 192)
    np.testing.assert_array_equal(packed.data[:70, :130], w)
    assert not packed.data[70:].any()
    assert not packed.data[:, 130:].any()
    assert pack_weights(W).data is W
    leaves, tree = jax.tree.flatten(packed)
    assert len(leaves) == 1
    assert jax.tree.unflatten(tree, leaves) == packed


def test_host_weights_work_in_reference_traced_or_not() -> None:
    on_device = jnp.asarray(W)
    in_host = jax.device_put(on_device, on_device.sharding.with_memory_kind("pinned_host"))
    expected = hybrid_gemm(X, on_device, 0.5, backend="reference")
    for run in (hybrid_gemm, jax.jit(hybrid_gemm, static_argnames="backend")):
        np.testing.assert_array_equal(run(X, in_host, 0.5, backend="reference"), expected)
    with pytest.raises(ValueError, match="backend='interpret' cannot run inside a jit"):
        jax.jit(lambda w: hybrid_gemm(X, w, 0.5, backend="interpret"))(in_host)


X_IN_HOST = jax.device_put(X, X.sharding.with_memory_kind("pinned_host"))

WRONG: list[tuple[dict[str, Any], str]] = [
    ({"alpha": 1.5}, r"alpha=1.5: expected a number in \[0, 1\]"),
    ({"alpha": -0.1}, r"alpha=-0.1.*\[0, 1\]"),
    ({"alpha": float("nan")}, r"alpha=nan.*\[0, 1\]"),
    ({"alpha": jnp.float32(2)}, r"alpha=2.0.*\[0, 1\]"),
    ({"alpha": np.zeros(2)}, r"alpha of shape \(2,\): expected a scalar"),
    ({"alpha": "half"}, r"alpha='half': expected a number"),
    ({"x": X.astype(jnp.float32)}, r"x of dtype float32: expected one of bfloat16, float16"),
    ({"x": X.astype(jnp.float16)}, r"w of dtype bfloat16: expected float16 as in x"),
    ({"x": X[:0]}, r"x of shape 0x128: expected \[M >= 1, K=128\]"),
    ({"x": X[:, :64]}, r"x of shape 72x64: expected .*K=128"),
    ({"x": X_IN_HOST}, r"x in host memory: expected device memory"),
    ({"x": X[0]}, r"x: got \(128,\), expected an array \[M, K\]"),
    ({"w": W.astype(np.int8)}, r"w of dtype int8: expected one of bfloat16, float16"),
    ({"w": W[:, :100]}, r"w with N=100: expected a multiple of 64.*pack_weights"),
    ({"w": W[:72], "x": X[:, :72]}, r"w with K=72: expected a multiple of 64.*pack_weights"),
    ({"w": W[0]}, r"w of shape 192: expected a matrix or a stack"),
    ({"w": [1.0]}, r"w of type list: expected an array, HostArray or PackedWeights"),
    (
        {"w": PackedWeights(data=W, k=30, n=192, w_layout="kn"), "x": X[:, :30]},
        r"w packed for K=30, N=192 holds 128x192",
    ),
    ({"w_layout": "mn"}, r"w_layout='mn': expected 'kn'"),
    ({"layer": 0}, r"layer=0: expected None"),
    ({"w": STACK}, r"layer=None: expected a number from 0 to 1"),
    ({"w": STACK, "layer": 2}, r"layer=2: expected a number from 0 to 1"),
    ({"w": STACK, "layer": 0.5}, r"layer=0.5: expected a whole number"),
    ({"cluster": 3}, r"cluster=3: expected 1, 2, 4 or 8"),
    ({"cluster": 2.0}, r"cluster=2.0: expected 1, 2, 4 or 8"),
    ({"cluster": True}, r"cluster=True: expected 1, 2, 4 or 8"),
    ({"config": SMALL, "cluster": 2}, r"cluster=2: expected config.cluster=1"),
    ({"config": SMALL, "sm_limit": 0}, r"sm_limit=0: expected from cluster=1 to 4 SMs"),
    ({"config": SMALL, "sm_limit": 5}, r"sm_limit=5: expected from cluster=1 to 4 SMs"),
    ({"config": SMALL, "sm_split": 5}, r"sm_split=5: expected .* from 0 to 4"),
    ({"config": SMALL, "sm_limit": 2, "sm_split": 3}, r"sm_split=3: expected .* from 0 to 2"),
    (
        {"config": replace(SMALL, cluster=2), "cluster": 2, "sm_split": 1},
        r"sm_split=1: expected a multiple of cluster=2",
    ),
    ({"config": SMALL, "sm_split": 0}, r"sm_split=0: leaves SymGEMM none of 4 SMs"),
    ({"config": SMALL, "sm_split": 4}, r"sm_split=4: leaves AsymGEMM none of 4 SMs"),
    (
        {"config": replace(SMALL, asym=False)},
        r"alpha=0.5: expected 1, since config.asym=False leaves AsymGEMM out",
    ),
    ({"config": replace(SMALL, tm=96)}, r"tm=96: expected a multiple of 64 .* up to 256"),
    ({"config": replace(SMALL, tk=128)}, r"tk=128: expected 64"),
    ({"config": 3}, r"config of type builtins.int: expected pallas_kernels.gemm.Config"),
    ({"config": SMALL, "sm_limit": 1}, r"sm_split=.*leaves .*GEMM none of 1 SMs"),
    ({"out_dtype": jnp.float16}, r"out_dtype=float16: expected bfloat16 or float32"),
    ({"out_dtype": "bfloat17"}, r"out_dtype='bfloat17': expected a type, such as 'float32'"),
    ({"backend": "cuda"}, r"backend='cuda': expected one of auto, sm90, interpret, reference"),
]


@pytest.mark.parametrize(("change", "message"), WRONG, ids=[m for _, m in WRONG])
@pytest.mark.parametrize("backend", ["interpret", "reference"])
def test_wrong_use_names_argument_value_and_range(
    change: dict[str, Any], message: str, backend: str
) -> None:
    arguments = {"x": X, "w": W, "alpha": 0.5, "backend": backend} | change
    unchecked = inspect.unwrap(hybrid_gemm)  # as in production: without the tests' type checks
    with compilations() as seen, pytest.raises(ValueError, match=message):
        unchecked(**arguments)
    assert not seen  # refused before anything was compiled


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tm": 100}, r"tm=100: expected a multiple of 8 up to 256"),
        ({"tm": 512}, r"tm=512"),
        ({"tn": 24}, r"tn=24: expected a multiple of 64 up to 256"),
        ({"tk": 32}, r"tk=32: expected 64, 128 or 256"),
        ({"warpgroups": 5}, r"warpgroups=5: expected 1, 2, 3 or 4"),
        ({"cluster": 16}, r"cluster=16: expected 1, 2, 4 or 8"),
        ({"cluster": 4, "sm_count": 2}, r"sm_count=2: expected at least cluster=4"),
        ({"w_stages": 1}, r"w_stages=1: expected a number above 1"),
        ({"x_columns": 128}, r"x_columns=128: expected .* at most tk=64"),
        ({"compute_registers": 236}, r"compute_registers=236: expected a multiple of 8"),
        ({"compute_registers": 240}, r"compute_registers=240: .* = 520 to be at most 504"),
    ],
)
def test_a_configuration_the_hardware_cannot_run_is_refused(
    change: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        Config(**change)


def test_a_choice_of_another_type_is_refused_without_the_checks_of_tests() -> None:
    script = (
        "from pallas_kernels.gemm import Config\n"
        "for given in ({'tn': '64'}, {'x_stages': 4.0}, {'stagger': 1}, {'cluster': True}):\n"
        "    try: Config(**given)\n"
        "    except ValueError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout.splitlines() == [
        "tn='64': expected a whole number",
        "x_stages=4.0: expected a whole number",
        "stagger=1: expected True or False",
        "cluster=True: expected a whole number",
    ], done.stderr


def test_too_much_shared_memory_is_refused_before_launch() -> None:
    greedy = Config(x_stages=5, w_stages=5, sm_count=4)
    with pytest.raises(ValueError, match=r"config: needs 279552 bytes.*at most 232448"):
        hybrid_gemm(X, W, 0.5, config=greedy, backend="interpret")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tm": 8, "x_stages": 33}, "x_stages=33: expected at most 32 slots"),
        ({"tm": 8, "w_stages": 33}, "w_stages=33: expected at most 32 slots"),
    ],
)
def test_more_barriers_than_a_ring_can_have_are_refused(
    change: dict[str, Any], message: str
) -> None:
    """Interpret mode takes them, and the compiler does not."""
    small: dict[str, Any] = {"tn": 64, "tk": 128, "asym": False, "warpgroups": 1, "sm_count": 4}
    gemm = Gemm(m=8, k=128, n=64, w_layout="nk", quantised=Quantised(kind="int4"))
    with pytest.raises(ValueError, match=message):
        check_fits(Config(**small | {"x_stages": 2, "w_stages": 2} | change), gemm)


def test_of_warpgroups_in_turn_each_has_barriers_of_its_own() -> None:
    config = Config(tm=64, tn=64, x_stages=17, w_stages=2, warpgroups=2, ping_pong=True, sm_count=4)
    with pytest.raises(ValueError, match="x_stages=34: expected at most 32"):
        check_fits(config, Gemm(m=64, k=128, n=64))


@pytest.mark.parametrize("w_layout", ["kn", "nk"])
@pytest.mark.parametrize("kind", [np.asarray, jnp.asarray])
def test_tile_major_weights_are_the_same_weights(w_layout: Any, kind: Any) -> None:
    stack = np.random.default_rng(0).standard_normal((2, 150, 70)).astype(X.dtype)
    rows = pack_weights(kind(stack), w_layout)
    tiles = pack_weights(kind(stack), w_layout, tiles=True)
    assert tiles.w_layout == "tiles"
    assert (tiles.k, tiles.n) == (rows.k, rows.n)
    assert tiles.data.shape[-2:] == (64, 64)
    # a tile is 64 columns of 64 rows of K each
    block = rows.data[1, 64:128, :64] if w_layout == "kn" else rows.data[1, :64, 64:128].T
    np.testing.assert_array_equal(tiles.data[1][0, 1], block.T)
    x = X[:8, :1].repeat(rows.k, 1)
    for layer in (0, 1):
        ours, theirs = (
            np.asarray(hybrid_gemm(x, w, 1.0, layer=layer, backend="reference"))
            for w in (tiles, rows)
        )
        np.testing.assert_array_equal(ours.view(np.uint16), theirs.view(np.uint16))


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((128, 128), "expected a matrix or a stack"),
        ((2, 2, 64, 32), "w of shape 2x2x64x32: expected tiles"),
    ],
)
def test_what_are_no_tiles_is_refused(shape: tuple[int, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        hybrid_gemm(X, np.zeros(shape, X.dtype), 1.0, w_layout="tiles", backend="reference")
