"""Arguments of `grouped_gemm` with quantised experts."""

from __future__ import annotations

import inspect
from dataclasses import replace
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.gemm import Config, Quantised
from pallas_kernels.grouped_gemm import grouped_gemm
from pallas_kernels.quantized_gemm import matrix_of
from tests.compilations import compilations
from tests.pallas_kernels.gemm.cases import OUTPUT_ONLY, Case

GGUF = Quantised(kind="int4", group=32, scale_dtype="float16", offset_dtype="float32")
CASE = Case(m=40, k=128, n=64, sizes=(11, 0, 20), weights=GGUF)
X, W, _ = CASE.operands()
STACK = CASE.operands(stack=(2,))[1]

WRONG: list[tuple[dict[str, Any], str]] = [
    ({"group_sizes": [1, 2]}, r"group_sizes of shape 2: expected one number for each of w's 3"),
    ({"group_sizes": [20, 0, 21]}, r"group_sizes with sum 41: expected at most the 40 rows"),
    ({"x": X.astype(np.float32)}, r"x of dtype float32: expected one of bfloat16, float16"),
    ({"x": X[:, :64]}, r"x of shape 40x64: expected .*K=128"),
    ({"w": matrix_of(W, 0)}, r"w.data of shape \(64, 64\): expected experts \[E, ...\]"),
    ({"w": CASE.operands(stack=(2, 2))[1]}, r"w.data of shape \(2, 2, 3, 64, 64\): expected"),
    ({"w": replace(W, scales=W.scales[:, :1])}, r"w.scales of shape \(3, 1, 64\): expected"),
    ({"w": replace(W, offsets=W.offsets[:2])}, r"w.offsets of shape \(2, 4, 64\): expected"),
    ({"w": replace(W, data=W.data.view(np.uint8))}, r"w.data of dtype uint8: expected int8"),
    ({"w_layout": "mn"}, r"w_layout='mn': expected 'kn'"),
    ({"layer": 0}, r"layer=0: expected None"),
    ({"w": STACK}, r"layer=None: expected a number from 0 to 1"),
    ({"w": STACK, "layer": 2}, r"layer=2: expected a number from 0 to 1"),
    ({"cluster": 3}, r"cluster=3: expected 1, 2, 4 or 8"),
    ({"config": OUTPUT_ONLY, "cluster": 2}, r"cluster=2: expected config.cluster=1"),
    ({"config": Config()}, r"tk=64: expected at least 128 for kind='int4'"),
    ({"config": replace(OUTPUT_ONLY, tm=256)}, r"tm=256: expected at most 128 for group=32"),
    ({"config": OUTPUT_ONLY, "sm_limit": 5}, r"sm_limit=5: expected from cluster=1 to 4 SMs"),
    ({"out_dtype": jnp.float16}, r"out_dtype=float16: expected bfloat16 or float32"),
]


@pytest.mark.parametrize(("change", "message"), WRONG, ids=[m for _, m in WRONG])
def test_wrong_use_names_argument_value_and_range(change: dict[str, Any], message: str) -> None:
    arguments = {"x": X, "w": W, "group_sizes": CASE.sizes, "backend": "reference"} | change
    unchecked = inspect.unwrap(grouped_gemm)  # as in production: without the tests' type checks
    with compilations() as seen, pytest.raises(ValueError, match=message):
        unchecked(**arguments)
    assert not seen  # refused before anything was compiled
